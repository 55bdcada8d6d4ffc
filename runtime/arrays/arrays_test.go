package arrays

import (
	"math"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// value is element i of t.
func value(t tensor.Tensor, i int) float64 {
	switch t.DType {
	case dtype.F32:
		return float64(t.F32()[i])
	case dtype.F64:
		return t.F64()[i]
	case dtype.BF16:
		return float64(dtype.BF16To(device.View[uint16](t.Buf)[i]))
	}
	return float64(dtype.F16To(device.View[uint16](t.Buf)[i]))
}

// rounded is x as an element of dt, an f64 by way of f32 on its way to 16 bits.
func rounded(dt dtype.DType, x float64) float64 {
	switch dt {
	case dtype.F32:
		return float64(float32(x))
	case dtype.F64:
		return x
	case dtype.BF16:
		return float64(dtype.BF16To(dtype.BF16From(float32(x))))
	}
	return float64(dtype.F16To(dtype.F16From(float32(x))))
}

// Every type becomes every other, in any shape, across the border of a piece.
func TestConvert(t *testing.T) {
	types := []dtype.DType{dtype.F32, dtype.F64, dtype.BF16, dtype.F16}
	d := device.NewCPU()
	s := device.NewCPUStream("s", nil)
	defer s.Close()
	h := Host{"test"}
	for _, n := range []int{0, 1, 1024, 1025, 3001} {
		wide, err := tensor.Alloc(d, dtype.F64, n)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			wide.F64()[i] = math.Sin(float64(i)) * math.Pow(2, float64(i%9-4))
		}
		for _, from := range types {
			src, err := tensor.Alloc(d, from, n)
			if err != nil {
				t.Fatal(err)
			}
			h.Convert(s, src, wide)
			for _, to := range types {
				dst, err := tensor.Alloc(d, to, 1, n)
				if err != nil {
					t.Fatal(err)
				}
				h.Convert(s, dst, src)
				if err := s.Synchronize(t.Context()); err != nil {
					t.Fatal(err)
				}
				for i := range n {
					if got, want := value(dst, i), rounded(to, rounded(from, wide.F64()[i])); got != want {
						t.Fatalf("%s to %s: element %d of %d is %v, want %v", from, to, i, n, got, want)
					}
				}
			}
		}
	}
}

// otherDevice is a stream of another device than the CPU's.
type otherDevice struct{ device.Stream }

func (otherDevice) Device() device.Device { return renamed{device.NewCPU()} }

type renamed struct{ device.Device }

func (renamed) String() string { return "other:0" }

// deaf is a stream that runs no functions.
type deaf struct{ device.Stream }

func TestOf(t *testing.T) {
	s := device.NewCPUStream("s", nil)
	defer s.Close()
	if m, err := Of("test", s, s); err != nil || m != (Host{"test"}) {
		t.Errorf("%v, %v", m, err)
	}
	for want, other := range map[string]device.Stream{"must be of one device": otherDevice{s}, "neither CUDA kernels nor Go functions": deaf{s}} {
		if _, err := Of("test", s, other); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}
