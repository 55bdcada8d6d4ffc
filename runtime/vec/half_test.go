package vec

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Sums that would vanish if each addition rounded to 16 bits survive.
func TestHalvesRoundOnce(t *testing.T) {
	eachPath(t, func(path string) {
		var srcs [][]byte
		for range 257 {
			b := make([]byte, 100*2)
			for i := range 100 {
				view[uint16](b)[i] = dtype.BF16From(1)
			}
			srcs = append(srcs, b)
		}
		ReduceMany(dtype.BF16, Sum, srcs[:1], srcs)
		if got := float(dtype.BF16, srcs[0], 99); got != 256 { // 257 rounds to even; step by step 256 is reached and kept too
			t.Errorf("%s: 257 ones make %v", path, got)
		}
		for _, b := range srcs[:3] {
			for i := range 100 {
				view[uint16](b)[i] = dtype.BF16From(256)
			}
		}
		// 768 + 254 = 1022, which bfloat16 rounds to 1024; rounding each step keeps 768.
		ReduceMany(dtype.BF16, Sum, srcs[:1], srcs)
		if got := float(dtype.BF16, srcs[0], 99); got != 1024 {
			t.Errorf("%s: 3*256 + 254 make %v, want 1024", path, got)
		}
	})
}

func TestConversionsAreThoseOfDType(t *testing.T) {
	kinds := map[dtype.DType]struct {
		to   func(uint16) float32
		from func(float32) uint16
	}{dtype.BF16: {dtype.BF16To, dtype.BF16From}, dtype.F16: {dtype.F16To, dtype.F16From}}
	eachPath(t, func(path string) {
		rng := rand.New(rand.NewPCG(5, 6))
		for dt, k := range kinds {
			all := make([]uint16, 1<<16)
			for i := range all {
				all[i] = uint16(i)
			}
			wide := make([]float32, len(all))
			Widen(dt, wide, bytesOf(all))
			for i, f := range wide {
				if math.Float32bits(f) != math.Float32bits(k.to(all[i])) && f == f {
					t.Fatalf("%s %v: %#04x widens to %v", path, dt, i, f)
				}
			}
			// Each half, its neighbours in float32, the middles between halves, and noise.
			var in []float32
			for i, f := range wide {
				in = append(in, f, math.Nextafter32(f, 9), math.Nextafter32(f, -9), math.Float32frombits(rng.Uint32()))
				if i+1 < len(wide) {
					in = append(in, f/2+wide[i+1]/2)
				}
			}
			for _, off := range []int{0, 1, 7} {
				part := in[off:]
				out := make([]byte, 2*len(part)+1)[1:]
				Narrow(dt, out, part)
				for i, f := range part {
					if got := view[uint16](out)[i]; got != k.from(f) {
						t.Fatalf("%s %v: %v (%#x) narrows to %#04x, want %#04x", path, dt, f, math.Float32bits(f), got, k.from(f))
					}
				}
			}
			acc, want := make([]float32, 9001), make([]float32, 9001)
			for i := range acc {
				acc[i] = float32(i) - 4000
				want[i] = acc[i] + k.to(k.from(float32(i)))
			}
			half := make([]byte, 2*len(acc)+1)[1:]
			for i := range acc {
				view[uint16](half)[i] = k.from(float32(i))
			}
			Accumulate(dt, acc, half)
			for i := range acc {
				if acc[i] != want[i] {
					t.Fatalf("%s %v: accumulated element %d is %v, want %v", path, dt, i, acc[i], want[i])
				}
			}
		}
	})
}

func TestAccumulateF32(t *testing.T) {
	eachPath(t, func(path string) {
		for _, n := range lengths {
			dst, src := make([]float32, n), make([]float32, n)
			for i := range dst {
				dst[i], src[i] = float32(i), 0.5
			}
			Accumulate(dtype.F32, dst, bytesOf(src))
			for i := range dst {
				if dst[i] != float32(i)+0.5 {
					t.Fatalf("%s: element %d is %v", path, i, dst[i])
				}
			}
		}
	})
}
