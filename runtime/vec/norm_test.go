package vec

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

func TestSumSquares(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.F32, dtype.F64, dtype.F16, dtype.BF16} {
		for _, n := range lengths {
			x := at(dt, n, 1)
			want := 0.0
			for i := range n {
				set(dt, x[i*dt.Size():], float64(i%31)-15)
				want += (float64(i%31) - 15) * (float64(i%31) - 15) // integers below 2^53: every order is exact
			}
			rng := rand.New(rand.NewPCG(uint64(n), 9))
			y := at(dt, n, 0)
			for i := range n {
				set(dt, y[i*dt.Size():], rng.NormFloat64())
			}
			first := math.NaN()
			eachPath(t, func(path string) {
				if got := SumSquares(dt, x); got != want {
					t.Errorf("%s %v: %d elements: %v, want %v", path, dt, n, got, want)
				}
				got := SumSquares(dt, y)
				if first == first && got != first {
					t.Errorf("%s %v: %d elements: %v, plain Go has %v", path, dt, n, got, first)
				}
				first = got
			})
		}
	}
	nan := []float32{1, float32(math.NaN()), 3}
	if got := SumSquares(dtype.F32, bytesOf(nan)); got == got {
		t.Errorf("a NaN is lost: %v", got)
	}
}
