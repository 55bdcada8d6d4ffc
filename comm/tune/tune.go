// Package tune keeps what ranks have measured of their links: how long each way to
// carry out a collective takes for some sizes, beside what a formula expects of it. The
// formula says how times grow with sizes and ranks, the measurement by how much it is
// off on the machines at hand.
package tune

import (
	"cmp"
	"math"
	"slices"
)

// Point is one measurement.
type Point struct {
	Call      string  `json:"call"`      // AllReduce
	Algorithm string  `json:"algorithm"` // ring
	Bytes     int     `json:"bytes"`     // of the full array
	Expected  float64 `json:"expected"`  // seconds, by the formula
	Seconds   float64 `json:"seconds"`   // as measured; 0 where the formula expects too much to be worth a look
}

// Table is the measurements of one group. The zero value has none. It may be read from
// any goroutine.
type Table struct {
	points []Point // in the order of call, algorithm and size
}

// New makes a table. A Point that was not measured is as far off as the others of the
// same call and size are in the mean.
func New(points []Point) *Table {
	t := &Table{points: slices.Clone(points)}
	for i, p := range t.points {
		if p.Seconds == 0 {
			t.points[i].Seconds = p.Expected * meanOff(points, p)
		}
	}
	slices.SortFunc(t.points, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.Call, b.Call), cmp.Compare(a.Algorithm, b.Algorithm), cmp.Compare(a.Bytes, b.Bytes))
	})
	return t
}

// meanOff is the geometric mean of Seconds/Expected over p's neighbours, 1 without any.
func meanOff(points []Point, p Point) float64 {
	var sum float64
	n := 0
	for _, q := range points {
		if q.Call == p.Call && q.Bytes == p.Bytes && q.Seconds > 0 {
			sum += math.Log(q.Seconds / q.Expected)
			n++
		}
	}
	if n == 0 {
		return 1
	}
	return math.Exp(sum / float64(n))
}

// Points lists the measurements; a nil Table has none.
func (t *Table) Points() []Point {
	if t == nil {
		return nil
	}
	return slices.Clone(t.points)
}

// Off is by how much a call takes longer than the formula expects: 1 where nothing was
// measured. Between two sizes that were measured it goes from one's figure to the
// other's as the logarithm of the size does; beyond them it stays.
func (t *Table) Off(call, algorithm string, bytes int) float64 {
	if t == nil {
		return 1
	}
	var below, above *Point
	for i := range t.points {
		switch p := &t.points[i]; {
		case p.Call != call || p.Algorithm != algorithm:
		case p.Bytes <= bytes:
			below = p
		case above == nil:
			above = p
		}
	}
	switch {
	case below == nil && above == nil:
		return 1
	case above == nil:
		return below.off()
	case below == nil:
		return above.off()
	}
	way := math.Log(float64(bytes)/float64(below.Bytes)) / math.Log(float64(above.Bytes)/float64(below.Bytes))
	return math.Exp((1-way)*math.Log(below.off()) + way*math.Log(above.off()))
}

func (p *Point) off() float64 { return p.Seconds / p.Expected }

// A call takes as many seconds, on machines and networks of any kind.
const (
	fastest = 1e-9
	slowest = 24 * 60 * 60
)

// valid reports whether the point can have been measured. Its comparisons are false of NaN.
func (p *Point) valid() bool {
	return p.Call != "" && p.Algorithm != "" && p.Bytes > 0 &&
		p.Expected >= fastest && p.Expected <= slowest && p.Seconds >= fastest && p.Seconds <= slowest
}
