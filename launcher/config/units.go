package config

import (
	"math"
	"strconv"
	"strings"
)

// An interval is a range of numbers in mathematics' notation: [0,1) holds 0 but
// not 1, and (0,) has no upper end.
type interval struct {
	text              string
	lo, hi            float64
	openLow, openHigh bool
}

// parseInterval panics on a mistake, for intervals stand in struct tags.
func parseInterval(s string) *interval {
	lo, hi, ok := strings.Cut(s[1:len(s)-1], ",")
	if !ok {
		panic("config: bad interval " + s)
	}
	end := func(s string, missing float64) float64 {
		if s == "" {
			return missing
		}
		x, err := strconv.ParseFloat(s, 64)
		if err != nil {
			panic("config: bad interval end " + s)
		}
		return x
	}
	return &interval{
		text: s, lo: end(lo, math.Inf(-1)), hi: end(hi, math.Inf(1)),
		openLow: s[0] == '(', openHigh: s[len(s)-1] == ')',
	}
}

// holds is false for NaN, too.
func (i *interval) holds(x float64) bool {
	above := x > i.lo || x == i.lo && !i.openLow
	below := x < i.hi || x == i.hi && !i.openHigh
	return above && below
}

// words says the interval in English.
func (i *interval) words() string {
	var parts []string
	num := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	if !math.IsInf(i.lo, -1) {
		if i.openLow {
			parts = append(parts, "above "+num(i.lo))
		} else {
			parts = append(parts, "at least "+num(i.lo))
		}
	}
	if !math.IsInf(i.hi, 1) {
		if i.openHigh {
			parts = append(parts, "below "+num(i.hi))
		} else {
			parts = append(parts, "at most "+num(i.hi))
		}
	}
	return strings.Join(parts, " and ")
}

// byteUnits lists longer suffixes before those that they end in.
var byteUnits = []struct {
	suffix string
	size   int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// parseBytes reads a whole number of bytes or a decimal number with a unit.
func parseBytes(s string) (Bytes, bool) {
	unit := int64(1)
	for _, u := range byteUnits {
		if number, ok := strings.CutSuffix(s, u.suffix); ok {
			s, unit = strings.TrimSpace(number), u.size
			break
		}
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		if n > math.MaxInt64/unit || n < math.MinInt64/unit {
			return 0, false
		}
		return Bytes(n * unit), true
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || unit == 1 || !(math.Abs(x)*float64(unit) < 1<<62) {
		return 0, false
	}
	return Bytes(x * float64(unit)), true
}
