package vec

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

// sumLanes is the number of partial sums of SumSquares: element i goes to
// i mod sumLanes, so that every path adds in the same order.
const sumLanes = 16

// SumSquares returns the sum of the squares of x, of a floating-point type, in
// float64. The order of additions depends on the length alone.
func SumSquares(dt dtype.DType, x []byte) float64 {
	check(dt, len(x))
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	lanes := &s.lanes
	*lanes = [sumLanes]float64{}
	switch dt {
	case dtype.F32:
		squares(lanes, x)
	case dtype.F16, dtype.BF16:
		for len(x) > 0 {
			n := min(len(x), blockBytes)
			widen(dt, s.acc[:2*n], x[:n])
			squares(lanes, s.acc[:2*n])
			x = x[n:]
		}
	case dtype.F64:
		for i, v := range view[float64](x) {
			lanes[i%sumLanes] += float64(v * v) // the conversion keeps multiply and add apart on every processor
		}
	default:
		panic(fmt.Sprintf("vec: norm of %v", dt))
	}
	for half := sumLanes / 2; half > 0; half /= 2 {
		for i := range half {
			lanes[i] += lanes[i+half]
		}
	}
	return lanes[0]
}

// squares adds the squares of float32 elements to lanes. A square of a float32 is
// exact in float64, so it makes no difference whether a multiply-add rounds once.
func squares(lanes *[sumLanes]float64, x []byte) {
	if k := active.squares; k != nil {
		for len(x) >= vectorBytes {
			n := min(len(x), callBytes) &^ (vectorBytes - 1)
			k(&lanes[0], &x[0], n)
			x = x[n:]
		}
	}
	for i, v := range view[float32](x) {
		lanes[i%sumLanes] += float64(v) * float64(v)
	}
}
