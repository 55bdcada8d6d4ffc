package dropout

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// The first outputs of SplitMix64 for the state 0 are published with it.
func TestDrawIsSplitMix64(t *testing.T) {
	for i, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f} {
		if got := draw(0, uint64(i)); got != want {
			t.Errorf("element %d is %#x, want %#x", i, got, want)
		}
	}
}

func run(t *testing.T, threads int, y, x tensor.Tensor, p float64, key, row uint64, add bool) tensor.Tensor {
	s := kerntest.Stream(t)
	NewCPU(kerntest.Pool(t, threads)).Dropout(s, y, x, p, key, row, add)
	kerntest.Wait(t, s)
	return y
}

func ones(shape ...int) tensor.Tensor {
	x := kerntest.New(shape...)
	for i := range x.F32() {
		x.F32()[i] = 1
	}
	return x
}

// Which elements are dropped follows from key, row and channel alone, and the others
// are divided by what is kept on average.
func TestDropoutIsWhatItSays(t *testing.T) {
	const n, width, key, row = 37, 13, 99, 1000
	r := kerntest.Rand(1)
	x := kerntest.Normal(r, 1, n, width)
	before := kerntest.Normal(r, 1, n, width)
	for _, p := range []float64{0, 0.05, 0.5, 0.999} {
		for _, add := range []bool{false, true} {
			y := run(t, 1, kerntest.Clone(before), x, p, key, row, add)
			for i, got := range y.F32() {
				bits := draw(draw(key, row+uint64(i/width)), uint64(i%width/2))
				if i%width%2 == 0 {
					bits >>= 32
				}
				var want float32
				if float64(uint32(bits))/(1<<32) >= p {
					want = x.F32()[i] * float32(1/(1-p))
				}
				if add {
					want += before.F32()[i]
				}
				if got != want {
					t.Fatalf("p=%v add=%v: [%d,%d] is %v, want %v", p, add, i/width, i%width, got, want)
				}
			}
		}
	}
}

// Rows that are computed apart, by any number of threads, or in place, are the same.
func TestDropoutDoesNotDependOnTheSplit(t *testing.T) {
	const n, width, p, key = 2000, 31, 0.3, 5
	x := kerntest.Normal(kerntest.Rand(2), 1, n, width)
	want := run(t, 1, kerntest.New(n, width), x, p, key, 7, false)
	for _, threads := range kerntest.Threads {
		kerntest.Equal(t, fmt.Sprint(threads, " threads"), want, run(t, threads, kerntest.New(n, width), x, p, key, 7, false))
	}
	for _, cut := range []int{1, 999} {
		y := kerntest.New(n, width)
		run(t, 1, y.Rows(cut, n), x.Rows(cut, n), p, key, 7+uint64(cut), false)
		run(t, 1, y.Rows(0, cut), x.Rows(0, cut), p, key, 7, false)
		kerntest.Equal(t, fmt.Sprint("cut at row ", cut), want, y)
	}
	same := kerntest.Clone(x)
	kerntest.Equal(t, "in place", want, run(t, 1, same, same, p, key, 7, false))
}

// The share of dropped elements is p, along rows, columns and neighbours alike, and
// other keys and rows drop others. The counts are those of this seed.
func TestDropoutDropsItsShare(t *testing.T) {
	const n, width = 1000, 1000
	for _, c := range []struct {
		p       float64
		dropped int
	}{{0.05, 50553}, {0.1, 100225}, {0.5, 499786}} {
		y := run(t, 2, kerntest.New(n, width), ones(n, width), c.p, 42, 0, false).F32()
		other := run(t, 2, kerntest.New(n, width), ones(n, width), c.p, 43, 0, false).F32()
		var dropped, beside, below, both int
		var sum float64
		for i, v := range y {
			sum += float64(v)
			if v != 0 {
				continue
			}
			dropped++
			if y[(i+1)%len(y)] == 0 {
				beside++
			}
			if y[(i+width)%len(y)] == 0 {
				below++
			}
			if other[i] == 0 {
				both++
			}
		}
		if dropped != c.dropped {
			t.Errorf("p=%v: %d elements dropped, %d when this test was written", c.p, dropped, c.dropped)
		}
		// Five deviations of a binomial count; pairs are dropped with probability p².
		near := func(what string, got int, q float64) {
			if mean, dev := q*n*width, math.Sqrt(q*(1-q)*n*width); !(math.Abs(float64(got)-mean) <= 5*dev) {
				t.Errorf("p=%v: %d elements %s, want %.0f within %.0f", c.p, got, what, mean, 5*dev)
			}
		}
		near("dropped", dropped, c.p)
		near("dropped with the one beside", beside, c.p*c.p)
		near("dropped with the one below", below, c.p*c.p)
		near("dropped under another key too", both, c.p*c.p)
		if mean := sum / (n * width); !(math.Abs(mean-1) <= 5*math.Sqrt(c.p/(1-c.p)/(n*width))) {
			t.Errorf("p=%v: ones have the mean %v", c.p, mean)
		}
	}
}

func TestDropoutRefuses(t *testing.T) {
	c, s, n := NewCPU(kerntest.Pool(t, 1)), kerntest.Stream(t), kerntest.New
	kerntest.Panics(t, func() { c.Dropout(s, n(2, 3), n(3, 2), 0.1, 0, 0, false) }, "dropout", "x is f32[3 2]")
	kerntest.Panics(t, func() { c.Dropout(s, n(6), n(6), 0.1, 0, 0, false) }, "dropout", "2 dimensions")
	for _, p := range []float64{-0.1, 1, math.NaN()} {
		kerntest.Panics(t, func() { c.Dropout(s, n(2, 3), n(2, 3), p, 0, 0, false) }, "dropout", "probability")
	}
}
