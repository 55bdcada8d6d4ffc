package compress

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/param"
)

var nan = math.NaN()

// schemes are all of them, with settings at which some parameters of odd are small.
var schemes = []Options{
	{Scheme: FP16}, {Scheme: BF16}, {Scheme: Int8}, {Scheme: TopK, Fraction: 0.07}, {Scheme: PowerSGD, Rank: 2},
}

// everywhere calls f for all schemes, numbers of ranks, and both kinds of sums.
func everywhere(t *testing.T, list []Options, f func(t *testing.T, o Options, n int, scatter bool)) {
	for _, o := range list {
		for n := 1; n <= 4; n++ {
			for _, scatter := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s ranks=%d scatter=%t", o.Scheme, n, scatter), func(t *testing.T) { f(t, o, n, scatter) })
			}
		}
	}
}

// collected is what ranks found, by rank.
type collected[T any] struct {
	mu sync.Mutex
	by map[int]T
}

func (c *collected[T]) put(rank int, x T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[int]T{}
	}
	c.by[rank] = x
}

// whole puts the ranks' results together: each element must be the same on all ranks that
// have it, bit by bit.
func whole(t *testing.T, ranks map[int]map[string][]float32) map[string][]float32 {
	t.Helper()
	out := map[string][]float32{}
	for r := range len(ranks) {
		for name, v := range ranks[r] {
			if out[name] == nil {
				out[name] = slices.Clone(v)
				continue
			}
			for e, x := range v {
				switch y := out[name][e]; {
				case x != x:
				case y != y:
					out[name][e] = x
				case x != y:
					t.Errorf("rank %d: %s[%d] is %v, another rank has %v", r, name, e, x, y)
					return out
				}
			}
		}
	}
	return out
}

// run makes steps, each a window of micro micro-steps, and returns the sums of all
// micro-steps and of what the ranks keep.
func run(t *testing.T, o Options, n int, scatter bool, op comm.Op, steps, micro int, g gradient) (applied, owed []map[string][]float32) {
	t.Helper()
	l := layout(odd(), n, scatter, 1500)
	results := make([]collected[map[string][]float32], steps*micro)
	var kept collected[map[string][]float32]
	onRanks(t, n, o, op, l, func(r *rank) error {
		for i := range steps * micro {
			if i%micro == 0 {
				r.c.Begin()
			}
			got, err := r.reduce(i, g)
			if err != nil {
				return err
			}
			results[i].put(r.g.Rank(), got)
		}
		left := map[string][]float32{}
		for _, s := range r.c.State() {
			left[s.Name] = slices.Clone(s.F32())
		}
		kept.put(r.g.Rank(), left)
		return nil
	})
	for i := range results {
		applied = append(applied, whole(t, results[i].by))
	}
	for r := range n {
		owed = append(owed, kept.by[r])
	}
	return applied, owed
}

// What a scheme can express arrives unchanged: few numbers that are not zero, of which
// three times as many have no more than 8 bits; and for int8, 127 as the largest of all
// blocks, so that the scale is a whole number.
func TestWhatFitsGoesThroughUnchanged(t *testing.T) {
	most := float32(96)
	whole := func(p *param.Param, rank, step, e int) float32 {
		if e%20 != 0 {
			return 0
		}
		return most * float32(1-e/20%3)
	}
	everywhere(t, schemes, func(t *testing.T, o Options, n int, scatter bool) {
		most = 96
		switch o.Scheme {
		case Int8:
			most = 127
		case PowerSGD:
			o.MinRate = 1000 // nothing is worth it
		}
		for _, op := range []comm.Op{comm.Sum, comm.Avg} {
			applied, owed := run(t, o, n, scatter, op, 2, 1, whole)
			for step, got := range applied {
				for _, p := range odd() {
					for e, v := range got[p.Name] {
						want := whole(p, 0, 0, e)
						if op == comm.Sum {
							want *= float32(n)
						}
						if v != want {
							t.Fatalf("%s, step %d: %s[%d] is %v, want %v", op, step, p.Name, e, v, want)
						}
					}
				}
			}
			for r, list := range owed {
				for name, v := range list {
					if i := slices.IndexFunc(v, func(x float32) bool { return x != 0 }); i >= 0 && strings.HasPrefix(name, "error.") {
						t.Errorf("rank %d keeps %v of %s[%d]", r, v[i], name, i)
					}
				}
			}
		}
	})
}

// All elements of top-k are exact.
func TestTopKOfEverythingIsExact(t *testing.T) {
	everywhere(t, []Options{{Scheme: TopK, Fraction: 1}}, func(t *testing.T, o Options, n int, scatter bool) {
		applied, _ := run(t, o, n, scatter, comm.Sum, 2, 1, noise)
		for step, got := range applied {
			for _, p := range odd() {
				for e, v := range got[p.Name] {
					want := float32(0)
					for r := range n {
						want += noise(p, r, step, e)
					}
					if v != want {
						t.Fatalf("step %d: %s[%d] is %v, want %v", step, p.Name, e, v, want)
					}
				}
			}
		}
	})
}

// What was applied and what the ranks keep is together what they gave: nothing is lost
// but to the rounding of f32. A mean is the nth part of it.
func TestNothingIsLost(t *testing.T) {
	everywhere(t, schemes[2:], func(t *testing.T, o Options, n int, scatter bool) {
		for _, op := range []comm.Op{comm.Sum, comm.Avg} {
			for _, micro := range []int{1, 3} {
				const steps = 4
				applied, owed := run(t, o, n, scatter, op, steps, micro, noise)
				for _, p := range odd() {
					for e := range p.Numel() {
						given, arrived, size := 0.0, 0.0, 1.0
						for i := range steps * micro {
							for r := range n {
								given += float64(noise(p, r, i, e))
								size += math.Abs(float64(noise(p, r, i, e)))
							}
							v := float64(applied[i][p.Name][e])
							if op == comm.Avg {
								v *= float64(n)
							}
							arrived += v
						}
						for r := range n {
							if left := owed[r]["error."+p.Name]; left != nil {
								arrived += float64(left[e])
							}
						}
						if !(math.Abs(given-arrived) <= 1e-5*size) {
							t.Fatalf("%s, %d micro-steps: %s[%d]: %v were given, %v have arrived or are kept", op, micro, p.Name, e, given, arrived)
						}
					}
				}
			}
		}
	})
}

// Of gradients that stay the same, the mean of what arrives over many steps is the
// gradient: what is kept does not grow with the steps, so it goes with their number.
func TestTheMeanOverManyStepsIsTheGradient(t *testing.T) {
	still := func(p *param.Param, rank, _, e int) float32 { return noise(p, rank, 0, e) }
	off := func(applied []map[string][]float32) float64 {
		lost, given := 0.0, 0.0
		for _, p := range odd() {
			for e := range p.Numel() {
				want, got := 0.0, 0.0
				for r := range 2 {
					want += float64(still(p, r, 0, e))
				}
				for _, a := range applied {
					got += float64(a[p.Name][e]) / float64(len(applied))
				}
				given += want * want
				lost += (got - want) * (got - want)
			}
		}
		return math.Sqrt(lost / given)
	}
	for _, o := range schemes[2:] {
		for _, scatter := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s scatter=%t", o.Scheme, scatter), func(t *testing.T) {
				applied, _ := run(t, o, 2, scatter, comm.Sum, 200, 1, still)
				one, all := off(applied[:1]), off(applied)
				t.Logf("off by %.2g after one step, %.2g after 200", one, all)
				if !(all < one/10) || !(all < 0.1) {
					t.Errorf("the mean is off by %v of the gradient after one step, and by %v after 200", one, all)
				}
			})
		}
	}
}

// A sum of low rank is exact at once, up to rounding, and needs no second step.
func TestPowerSGDIsExactForMatricesOfItsRank(t *testing.T) {
	for _, rank := range []int{1, 2, 3} {
		low := func(p *param.Param, r, step, e int) float32 {
			if len(p.Shape) < 2 {
				return noise(p, r, step, e)
			}
			cols := p.Numel() / max(p.Shape[0], 1)
			v := 0.0
			for k := range rank { // the same row space on all ranks
				v += math.Sin(float64((k+1)*(e/cols+1)+r)) * math.Cos(float64((k+2)*(e%cols)))
			}
			return float32(v)
		}
		for _, scatter := range []bool{false, true} {
			applied, owed := run(t, Options{Scheme: PowerSGD, Rank: rank, MinRate: 1}, 3, scatter, comm.Sum, 2, 1, low)
			for step, got := range applied {
				for _, p := range odd() {
					for e, v := range got[p.Name] {
						want := 0.0
						for r := range 3 {
							want += float64(low(p, r, step, e))
						}
						if !(math.Abs(float64(v)-want) <= 2e-5*float64(rank)) && len(p.Shape) > 1 {
							t.Fatalf("rank %d, step %d: %s[%d] is %v, want %v", rank, step, p.Name, e, v, want)
						}
					}
				}
			}
			// It is the sum that has the rank: what a rank keeps of its own adds up to nothing.
			for _, p := range odd() {
				for e := range owed[0]["error."+p.Name] {
					sum := 0.0
					for r := range 3 {
						sum += float64(owed[r]["error."+p.Name][e])
					}
					if !(math.Abs(sum) <= 1e-4) {
						t.Fatalf("rank %d: %v are owed of %s[%d]", rank, sum, p.Name, e)
					}
				}
			}
		}
	}
}
