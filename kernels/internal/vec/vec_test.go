package vec

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
)

// use makes s what the functions of the package run.
func use(t testing.TB, s *set) {
	before := best
	best = s
	t.Cleanup(func() { best = before })
}

// ulps is the distance of got from want in units of want's last place in f32.
func ulps(got float32, want float64) float64 {
	w := float32(want)
	if got == w {
		return 0
	}
	unit := float64(math.Nextafter32(float32(math.Abs(want)), float32(math.Inf(1)))) - math.Abs(float64(float32(math.Abs(want))))
	return math.Abs(float64(got)-want) / unit
}

// Every 2^10th float from -110 to 89, of either sign: within a unit of the last
// place, subnormal results included.
func TestExpAccuracy(t *testing.T) {
	for _, s := range sets() {
		use(t, s)
		worst, where := 0.0, float32(0)
		var batch []float32
		flush := func() {
			in := append([]float32(nil), batch...)
			ExpSum(batch, 1, 0)
			for i, x := range in {
				want := math.Exp(float64(x))
				if math.IsInf(float64(float32(want)), 1) || float32(want) == 0 {
					if got := batch[i]; got != float32(want) && !(want < 3e-45) {
						t.Fatalf("%s: exp(%v) = %v, want %v", s.name, x, got, float32(want))
					}
					continue
				}
				if u := ulps(batch[i], want); !(u <= worst) {
					worst, where = u, x
				}
			}
			batch = batch[:0]
		}
		for bits := uint32(0); bits < math.Float32bits(110); bits += 1 << 10 {
			x := math.Float32frombits(bits)
			batch = append(batch, -x)
			if x < 89 {
				batch = append(batch, x)
			}
			if len(batch) > 1000 {
				flush()
			}
		}
		flush()
		t.Logf("%s: at most %.3f units in the last place, at %v", s.name, worst, where)
		if !(worst <= 1) {
			t.Errorf("%s: exp(%v) is %.3f units off", s.name, where, worst)
		}
	}
}

func TestExpSpecialValues(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, s := range sets() {
		use(t, s)
		for at := range 33 { // every place in a vector and in the tail
			for _, c := range [][2]float32{{-inf, 0}, {inf, inf}, {nan, nan}, {-1e30, 0}, {1e30, inf}, {0, 1}, {float32(math.Copysign(0, -1)), 1}, {-105, 0}} {
				x := make([]float32, 33)
				x[at] = c[0]
				sum := ExpSum(x, 1, 0)
				if got := x[at]; got != c[1] && !(got != got && c[1] != c[1]) {
					t.Fatalf("%s: exp(%v) = %v at %d", s.name, c[0], got, at)
				}
				if want := 32 + float64(c[1]); sum != want && !(sum != sum && want != want) {
					t.Fatalf("%s: sum %v with exp(%v) at %d", s.name, sum, c[0], at)
				}
			}
		}
	}
}

// Every loop of every set, at every length of tail, against f64.
func TestLoopsAgainstNaive(t *testing.T) {
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for _, s := range sets() {
		use(t, s)
		for n := range 70 {
			r := kerntest.Rand(uint64(n))
			in := func(dev float64) []float32 { return kerntest.Normal(r, dev, n).F32() }
			near := func(what string, got []float32, want func(i int) float64, tol float64) {
				t.Helper()
				w := make([]float64, n)
				for i := range w {
					w[i] = want(i)
				}
				kerntest.Near(t, fmt.Sprint(s.name, " ", what), kerntest.Of(got, n), w, tol)
			}
			// Outputs end in the middle of memory, whose rest must stay as it is.
			var guards [][]float32
			clone := func(x []float32) []float32 {
				room := make([]float32, n+32)
				copy(room, x)
				guards = append(guards, room[n:])
				return room[:n]
			}
			a, b, c := in(3), in(1), in(1)
			out, out2 := clone(nil), clone(nil)

			x := clone(a)
			sum := ExpSum(x, 0.5, 0.25)
			near("expSum", x, func(i int) float64 { return math.Exp(float64(a[i])*0.5 - 0.25) }, 1e-6)
			var want float64
			for _, v := range x {
				want += float64(v)
			}
			if !(math.Abs(sum-want) <= 1e-6*want) {
				t.Errorf("%s: sum of %d exponentials %v, want %v", s.name, n, sum, want)
			}

			x, y := clone(a), clone(b)
			SoftmaxGrad(x, y, 0.5, 2, 0.125)
			p := func(i int) float64 { return math.Exp(float64(a[i])*0.5 - 2) }
			near("softmaxGrad p", x, p, 1e-6)
			near("softmaxGrad ds", y, func(i int) float64 { return p(i) * (float64(b[i]) - 0.125) * 0.5 }, 1e-6)

			SwiGLU(out, a, b)
			near("swiglu", out, func(i int) float64 { return float64(a[i]) * sigmoid(float64(a[i])) * float64(b[i]) }, 1e-6)
			SwiGLUGrad(out, out2, c, a, b)
			near("swigluGrad up", out2, func(i int) float64 { return float64(c[i]) * float64(a[i]) * sigmoid(float64(a[i])) }, 1e-6)
			near("swigluGrad gate", out, func(i int) float64 {
				sig, g := sigmoid(float64(a[i])), float64(a[i])
				return float64(c[i]) * float64(b[i]) * (sig + g*sig*(1-sig))
			}, 1e-6)

			k := math.Sqrt(2 / math.Pi)
			gate := func(v float64) float64 { return sigmoid(2 * k * (v + 0.044715*v*v*v)) }
			GELU(out, a)
			near("gelu", out, func(i int) float64 { return float64(a[i]) * gate(float64(a[i])) }, 1.5e-6)
			GELUGrad(out, c, a)
			near("geluGrad", out, func(i int) float64 {
				v := float64(a[i])
				g := gate(v)
				return float64(c[i]) * (g + v*g*(1-g)*2*k*(1+3*0.044715*v*v))
			}, 1.5e-6)

			top, dot := math.Inf(-1), 0.0
			for i := range n {
				top, dot = max(top, float64(a[i])), dot+float64(a[i])*float64(b[i])
			}
			if got := Max(a); float64(got) != top {
				t.Errorf("%s: max of %d is %v, want %v", s.name, n, got, top)
			}
			if got := Dot(a, b); !(math.Abs(got-dot) <= 1e-13*(1+math.Abs(dot))) {
				t.Errorf("%s: dot of %d is %v, want %v", s.name, n, got, dot)
			}
			var plainSum float64
			for _, v := range a {
				plainSum += float64(v)
			}
			if got := Sum(a); !(math.Abs(got-plainSum) <= 1e-13*(1+math.Abs(plainSum))) {
				t.Errorf("%s: sum of %d is %v, want %v", s.name, n, got, plainSum)
			}
			if n <= Columns {
				sums, products := [Columns]float64{0: 7}, [Columns]float64{0: 7}
				for range 3 {
					AddColumns(&sums, a)
					AddProducts(&products, a, b, 0.5, 2)
				}
				for i := range sums {
					var x, y float64
					if i < n {
						x, y = 3*float64(a[i]), 3*float64(a[i])*float64((b[i]-0.5)*2)
					}
					if i == 0 {
						x, y = x+7, y+7
					}
					if !(math.Abs(sums[i]-x) <= 1e-14*(8+math.Abs(x))) || !(math.Abs(products[i]-y) <= 1e-14*(8+math.Abs(y))) {
						t.Errorf("%s: column %d of %d: %v and %v, want %v and %v", s.name, i, n, sums[i], products[i], x, y)
					}
				}
			}
			for _, g := range guards {
				for i, v := range g {
					if v != 0 {
						t.Fatalf("%s: with %d elements, %v was written %d behind the end", s.name, n, v, i)
					}
				}
			}
			for at := range n { // a NaN is left out wherever it stands
				x := clone(a)
				x[at] = float32(math.NaN())
				top := math.Inf(-1)
				for i, v := range a {
					if i != at {
						top = max(top, float64(v))
					}
				}
				if got := Max(x); float64(got) != top {
					t.Errorf("%s: max of %d without [%d] is %v, want %v", s.name, n, at, got, top)
				}
			}
		}
	}
}

func BenchmarkLoops(b *testing.B) {
	const n = 4096 // in the L1 and L2 caches
	r := kerntest.Rand(1)
	x, y, z, u, v := kerntest.Normal(r, 1, n).F32(), kerntest.Normal(r, 1, n).F32(), kerntest.Normal(r, 1, n).F32(), make([]float32, n), make([]float32, n)
	for _, s := range sets() {
		use(b, s)
		for _, l := range []struct {
			name string
			run  func()
		}{
			{"expSum", func() { copy(u, x); ExpSum(u, 1, 1) }},
			{"softmaxGrad", func() { copy(u, x); copy(v, y); SoftmaxGrad(u, v, 1, 1, 1) }},
			{"swiglu", func() { SwiGLU(u, x, y) }},
			{"swigluGrad", func() { SwiGLUGrad(u, v, z, x, y) }},
			{"gelu", func() { GELU(u, x) }},
			{"geluGrad", func() { GELUGrad(u, y, x) }},
			{"max", func() { Max(x) }},
			{"dot", func() { Dot(x, y) }},
			{"sum", func() { Sum(x) }},
		} {
			b.Run(l.name+"/"+s.name, func(b *testing.B) {
				for b.Loop() {
					l.run()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
			})
		}
	}
}
