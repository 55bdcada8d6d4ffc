package vec

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

func TestScaleAndDivide(t *testing.T) {
	eachPath(t, func(path string) {
		rng := rand.New(rand.NewPCG(7, 8))
		for _, dt := range dtype.All {
			for _, n := range lengths {
				x := at(dt, n, 1)
				fill(dt, x, rng)
				was := bytes.Clone(x)
				for _, by := range []int{1, 2, 3, 7, 8} {
					what := fmt.Sprintf("%s %v, %d elements by %d", path, dt, n, by)
					copy(x, was)
					Divide(dt, x, by)
					for i := range n {
						if !dt.Float() {
							if g, w := integer(dt, x, i), integer(dt, was, i)/int64(by); g != w {
								t.Fatalf("%s: %d, want %d", what, g, w)
							}
							continue
						}
						want := at(dt, 1, 0)
						set(dt, want, float(dt, was, i)/float64(by))
						if g, w := float(dt, x, i), float(dt, want, 0); g != w && (g == g || w == w) {
							t.Fatalf("%s: element %d of %v is %v, want %v", what, i, float(dt, was, i), g, w)
						}
					}
				}
				if !dt.Float() {
					continue
				}
				copy(x, was)
				Scale(dt, x, 0.37)
				for i := range n {
					f := 0.37
					if dt != dtype.F64 {
						f = float64(float32(f))
					}
					want := at(dt, 1, 0)
					set(dt, want, float(dt, was, i)*f)
					if g, w := float(dt, x, i), float(dt, want, 0); g != w && (g == g || w == w) {
						t.Fatalf("%s %v: %v * 0.37 is %v, want %v", path, dt, float(dt, was, i), g, w)
					}
				}
			}
		}
	})
	ints := []int32{7, -7, math.MaxInt32, math.MinInt32, 0}
	Scale(dtype.I32, bytesOf(ints), 1.5)
	for i, want := range []int32{10, -10, math.MaxInt32, math.MinInt32, 0} {
		if ints[i] != want {
			t.Errorf("integer %d scaled by 1.5 is %d, want %d", i, ints[i], want)
		}
	}
	b := []byte{200, 3, 0}
	Scale(dtype.U8, b, 1.5)
	if !bytes.Equal(b, []byte{255, 4, 0}) {
		t.Errorf("bytes scaled by 1.5 are %v", b)
	}
	Scale(dtype.U8, b, -1)
	Scale(dtype.I32, bytesOf(ints), math.NaN())
	if b[0] != 0 || ints[0] != 0 {
		t.Errorf("out of range gives %d, NaN gives %d, want 0", b[0], ints[0])
	}
}

// set rounds f to dt by way of float32.
func set(dt dtype.DType, b []byte, f float64) {
	switch dt {
	case dtype.F32:
		view[float32](b)[0] = float32(f)
	case dtype.F64:
		view[float64](b)[0] = f
	case dtype.F16:
		view[uint16](b)[0] = dtype.F16From(float32(f))
	case dtype.BF16:
		view[uint16](b)[0] = dtype.BF16From(float32(f))
	}
}
