package elementwise

import (
	"fmt"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

func newCPU(t testing.TB, threads int) (CPU, device.Stream) {
	return NewCPU(kerntest.Pool(t, threads)), kerntest.Stream(t)
}

func TestCopyConverts(t *testing.T) {
	to := map[dtype.DType]func(uint16) float32{dtype.BF16: dtype.BF16To, dtype.F16: dtype.F16To}
	from := map[dtype.DType]func(float32) uint16{dtype.BF16: dtype.BF16From, dtype.F16: dtype.F16From}
	c, s := newCPU(t, 2)
	for _, n := range []int{1, 1023, 1024, 1025, 40000} {
		x := kerntest.Normal(kerntest.Rand(uint64(n)), 100, n)
		for _, mid := range []dtype.DType{dtype.BF16, dtype.F16} {
			for _, end := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
				h, y := alloc(t, mid, n), alloc(t, end, n)
				c.Copy(s, h, x)
				c.Copy(s, y, h)
				kerntest.Wait(t, s)
				for i, v := range x.F32() {
					want := to[mid](from[mid](v))
					var got float32
					if end == dtype.F32 {
						got = y.F32()[i]
					} else {
						got, want = to[end](device.View[uint16](y.Buf)[i]), to[end](from[end](want))
					}
					if got != want {
						t.Fatalf("%v by %v to %v: %v, want %v", v, mid, end, got, want)
					}
				}
			}
		}
	}
}

func TestCopyKeepsBytesAndZeroClears(t *testing.T) {
	c, s := newCPU(t, 2)
	for _, dt := range dtype.All {
		for _, n := range []int{0, 3, 100001} {
			x, y := alloc(t, dt, n), alloc(t, dt, n)
			for i := range x.Buf.Bytes() {
				x.Buf.Bytes()[i] = byte(i*7 + 1)
			}
			c.Copy(s, y, x)
			kerntest.Wait(t, s)
			kerntest.Equal(t, fmt.Sprint("copy of ", dt), x, y)
			c.Zero(s, y)
			kerntest.Wait(t, s)
			kerntest.Equal(t, fmt.Sprint("zero of ", dt), alloc(t, dt, n), y)
		}
	}
}

func TestElementwiseRefuses(t *testing.T) {
	c, s := newCPU(t, 1)
	n := kerntest.New
	kerntest.Panics(t, func() { c.Copy(s, n(2, 3), n(6)) }, "copy", "x is f32[6]")
	kerntest.Panics(t, func() { c.Copy(s, n(6), alloc(t, dtype.I32, 6)) }, "copy", "cannot convert x i32[6] to y f32[6]")
	kerntest.Panics(t, func() { c.Zero(s, tensor.Tensor{}) }, "zero")
}

func alloc(t testing.TB, dt dtype.DType, shape ...int) tensor.Tensor {
	x, err := tensor.Alloc(device.NewCPU(), dt, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}
