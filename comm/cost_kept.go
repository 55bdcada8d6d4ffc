package comm

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/tune"
)

// A file of measurements is anybody's to write. What tells a measurement from nonsense is
// that it is of what would be measured now, and expects what the formula expects.

var errNoPoints = errors.New("there are no measurements in it")

// fits wants all points of some sizes, from the smallest on, as measure makes them.
func (b linkBench) fits(points []tune.Point) error {
	if len(points) == 0 {
		return errNoPoints
	}
	largest := slices.MaxFunc(points, func(p, q tune.Point) int { return p.Bytes - q.Bytes }).Bytes
	m := meter{f: b.g.chooser()}
	planned := 0
	for _, t := range m.plan(b.kinds()) {
		if t.kind == transport.Barrier || t.size > largest {
			continue
		}
		planned++
		i := slices.IndexFunc(points, func(p tune.Point) bool {
			return p.Call == t.kind.String() && p.Algorithm == string(t.algorithm) && p.Bytes == t.size
		})
		if i < 0 {
			return fmt.Errorf("%s by %s of %d bytes is not in it", t.kind, t.algorithm, t.size)
		}
		if err := expects(points[i], t.expected); err != nil {
			return err
		}
	}
	if planned != len(points) {
		return fmt.Errorf("it has %d points, and sizes up to %d bytes have %d", len(points), largest, planned)
	}
	return nil
}

// fits wants points of ways that there are. Their sizes go by the memory that the team has.
func (b *peersBench) fits(points []tune.Point) error {
	if len(points) == 0 {
		return errNoPoints
	}
	for _, p := range points {
		i := slices.IndexFunc(measuredKinds, func(k transport.Kind) bool { return onGPUs(k) == p.Call })
		if i < 0 {
			return fmt.Errorf("%+v is of no call on GPUs", p)
		}
		if err := expects(p, b.e.costs.expected(measuredKinds[i], Algorithm(p.Algorithm), b.e.size, p.Bytes)); err != nil {
			return err
		}
	}
	return nil
}

// expects holds a point against the formula. Files hold a number to its last bit; the
// tolerance is for compilers, which may round otherwise.
func expects(p tune.Point, formula float64) error {
	if math.Abs(p.Expected-formula) <= 1e-9*p.Expected { // false where the formula is infinite, as of ways that there are not
		return nil
	}
	return fmt.Errorf("%s by %s of %d bytes is expected to take %g s in it, by the formula %g s", p.Call, p.Algorithm, p.Bytes, p.Expected, formula)
}
