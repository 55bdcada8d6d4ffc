package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

// unlimited is a limit that is none.
const unlimited = ^uint64(0)

// limit reads a resource limit of this process, which workers inherit, by its name in
// /proc/self/limits.
func (m *Machine) limit(name string) (soft, hard uint64, err error) {
	const file = "proc/self/limits"
	text, err := m.text(file)
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.SplitSeq(text, "\n") {
		rest, ok := strings.CutPrefix(line, name)
		f := strings.Fields(rest)
		if !ok || len(f) < 2 {
			continue
		}
		if soft, err = limitValue(f[0]); err == nil {
			hard, err = limitValue(f[1])
		}
		return soft, hard, err
	}
	return 0, 0, fmt.Errorf("/%s has no line %q", file, name)
}

func limitValue(s string) (uint64, error) {
	if s == "unlimited" {
		return unlimited, nil
	}
	return strconv.ParseUint(s, 10, 64)
}

// status reads a line of /proc/self/status.
func (m *Machine) status(name string) (string, error) {
	const file = "proc/self/status"
	text, err := m.text(file)
	if err != nil {
		return "", err
	}
	for line := range strings.SplitSeq(text, "\n") {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("/%s has no line %q", file, name)
}

func bytesText(n uint64) string {
	switch {
	case n == unlimited:
		return "unlimited"
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	default:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	}
}
