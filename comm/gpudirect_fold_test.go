package comm

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc/nvrtctest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/testenv"
	"github.com/gorun-dev/gorun/runtime/vec"
)

func TestFoldKernelsCompile(t *testing.T) {
	var names []string
	for _, dt := range dtype.All {
		names = append(names, foldName(dt))
	}
	nvrtctest.Compile(t, "gpudirect.cu", foldText, names)
}

// The kernels do what the host does, bit by bit: all types and operations, at addresses
// that are aligned and at others, in place and not. Only a mean of 16-bit floats is rounded
// once there, and twice on the host.
func TestFoldsOnGPUs(t *testing.T) {
	if _, err := cuda.Count(); err != nil {
		testenv.Skip(t, "gpu", err.Error())
	}
	d, err := cuda.Open(0)
	if err != nil {
		testenv.Skip(t, "gpu", err.Error())
	}
	defer d.Close()
	f, err := loadFolds(ofGPU{}, d, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	on, err := d.NewStream("fold")
	if err != nil {
		t.Fatal(err)
	}
	s := on.(*cuda.Stream)
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	random := rand.New(rand.NewPCG(1, 2))
	for _, dt := range dtype.All {
		for _, op := range []Op{Sum, Avg, Min, Max, Prod} {
			for _, count := range []int{1, 7, 1000, 1<<18 + 3} {
				for _, at := range [][3]int{{0, 0, 0}, {0, 1, 0}, {3, 0, 2}, {1, 1, 1}} {
					for _, inPlace := range []bool{false, true} {
						a, b := elements(random, dt, count), elements(random, dt, count)
						n := len(a)
						stride := (n + 4*dt.Size() + 15) / 16 * 16
						memory, err := d.Alloc(3 * stride)
						if err != nil {
							t.Fatal(err)
						}
						part := func(i int) device.Buffer {
							lo := i*stride + at[i]*dt.Size()
							return memory.Slice(lo, lo+n)
						}
						dst, x, y := part(0), part(1), part(2)
						if inPlace {
							dst = y
						}
						s.Copy(x, device.Host(a))
						s.Copy(y, device.Host(b))
						c := &call{}
						c.DType, c.Op = dt, op
						f.enqueue(ofGPU{}, s, c, move{dst: dst, a: x, b: y, divide: op == Avg}, 3)
						got, want := make([]byte, n), make([]byte, n)
						s.Copy(device.Host(got), dst)
						if err := s.Synchronize(ctx); err != nil {
							t.Fatal(err)
						}
						fold(c, want, a, b)
						if i := differs(dt, got, want); i >= 0 {
							e := dt.Size()
							t.Fatalf("%s of %d %s at %v, in place %t: element %d of %x and %x is %x, want %x", op, count, dt, at, inPlace, i, a[i*e:][:e], b[i*e:][:e], got[i*e:][:e], want[i*e:][:e])
						}
						if err := d.Free(memory); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
	}
}

// fold is what the kernel is to do, on the host, for 3 ranks.
func fold(c *call, dst, a, b []byte) {
	if (c.DType == dtype.F16 || c.DType == dtype.BF16) && c.Op == Avg {
		x, y := make([]float32, len(a)/2), make([]float32, len(a)/2)
		vec.Widen(c.DType, x, a)
		vec.Widen(c.DType, y, b)
		for i := range x {
			x[i] = (x[i] + y[i]) / 3
		}
		vec.Narrow(c.DType, dst, x)
		return
	}
	c.reduce(dst, a, b)
	c.finish(dst, 3)
}

// elements is numbers of all sizes, some of them not finite.
func elements(r *rand.Rand, dt dtype.DType, n int) []byte {
	b := make([]byte, n*dt.Size())
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.Ldexp(r.Float64()-0.5, r.IntN(20)-8))
		switch r.IntN(200) {
		case 0:
			x[i] = float32(math.Inf(1))
		case 1:
			x[i] = float32(math.NaN())
		case 2:
			x[i] = 0
		}
	}
	switch dt {
	case dtype.F32:
		copy(b, device.Of(x).Bytes())
	case dtype.F64:
		wide := make([]float64, n)
		for i := range wide {
			wide[i] = float64(x[i]) * 1.1
		}
		copy(b, device.Of(wide).Bytes())
	case dtype.F16, dtype.BF16:
		vec.Narrow(dt, b, x)
	default:
		for i := range b {
			b[i] = byte(r.Uint32())
		}
	}
	return b
}

// differs is the first element that is another one, -1 if there is none. A NaN is one
// whatever its bits.
func differs(dt dtype.DType, got, want []byte) int {
	size := dt.Size()
	nan := func(b []byte) bool {
		x := make([]float32, 1)
		switch dt {
		case dtype.F32:
			x[0] = device.View[float32](device.Host(append([]byte{}, b...)))[0]
		case dtype.F64:
			x[0] = float32(device.View[float64](device.Host(append([]byte{}, b...)))[0])
		case dtype.F16, dtype.BF16:
			vec.Widen(dt, x, b)
		}
		return x[0] != x[0]
	}
	for i := 0; i < len(got); i += size {
		if g, w := got[i:i+size], want[i:i+size]; string(g) != string(w) && !(nan(g) && nan(w)) {
			return i / size
		}
	}
	return -1
}
