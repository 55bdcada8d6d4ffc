package compress

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/device/devicetest"
	"github.com/gorun-dev/gorun/runtime/dtype"
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

// Until it starts, PowerSGD leaves the buckets to others. A step that is taken back does
// not count.
func TestPowerSGDStartsLater(t *testing.T) {
	for _, scatter := range []bool{false, true} {
		l := layout(odd(), 2, scatter, 1500)
		onRanks(t, 2, Options{Scheme: PowerSGD, Start: 2}, comm.Sum, l, func(r *rank) error {
			cost := r.c.Cost(l)
			for step, plain := range []bool{true, true, true, false} {
				before := r.c.Stats()
				got, err := r.step(step, noise)
				if err != nil {
					return err
				}
				if step == 1 {
					r.c.Discard()
				}
				sent := r.c.Stats().Sent - before.Sent
				if plain && sent != cost.Plain || !plain && sent != cost.Sent || cost.Sent >= cost.Plain {
					return fmt.Errorf("step %d: %d bytes sent, cost %+v", step, sent, cost)
				}
				for _, p := range odd() {
					for e, v := range got[p.Name] {
						if want := noise(p, 0, step, e) + noise(p, 1, step, e); plain && v == v && v != want {
							return fmt.Errorf("step %d: %s[%d] is %v, want %v", step, p.Name, e, v, want)
						}
					}
				}
			}
			return nil
		})
	}
}

// A gradient that is not finite on one rank is not finite on any that gets its sum.
// Taken back, the step leaves no trace; not taken back, nothing that is not finite.
func TestWhatIsNotFiniteReachesAllAndStaysWithNobody(t *testing.T) {
	for _, bad := range []float64{nan, math.Inf(1), math.Inf(-1)} {
		faulty := func(p *param.Param, rank, step, e int) float32 {
			if step == 2 && rank == 1 && p.Name == "p10" && e == 1234 {
				return float32(bad)
			}
			return noise(p, rank, step, e)
		}
		everywhere(t, schemes, func(t *testing.T, o Options, n int, scatter bool) {
			if n == 1 {
				return
			}
			l := layout(odd(), n, scatter, 1500)
			for _, discard := range []bool{true, false} {
				var before, after collected[string]
				var behind, skipping, straight collected[map[string][]float32]
				onRanks(t, n, o, comm.Sum, l, func(r *rank) error {
					for step := range 4 {
						if step == 2 {
							before.put(r.g.Rank(), values(r.c.State()))
						}
						got, err := r.step(step, faulty)
						if err != nil {
							return err
						}
						switch step {
						case 2:
							behind.put(r.g.Rank(), got)
							if discard {
								r.c.Discard()
							}
							for _, s := range r.c.State() {
								if i := slices.IndexFunc(s.F32(), func(x float32) bool { return x-x != 0 }); i >= 0 {
									return fmt.Errorf("%s[%d] is %v", s.Name, i, s.F32()[i])
								}
							}
							after.put(r.g.Rank(), values(r.c.State()))
						case 3:
							skipping.put(r.g.Rank(), got)
						}
					}
					return nil
				})
				found := 0
				for r := range n {
					if v := behind.by[r]["p10"][1234]; v-v != 0 {
						found++ // under Scatter all but the owner have NaN here
					}
				}
				if got := whole(t, behind.by)["p10"]; got[1234]-got[1234] == 0 || found != n {
					t.Errorf("%v arrives as %v, on %d of %d ranks", bad, got[1234], found, n)
				}
				if !discard {
					continue
				}
				for r := range n {
					if before.by[r] != after.by[r] {
						t.Errorf("rank %d keeps something of the step", r)
					}
				}
				// Without the step everything is the same.
				onRanks(t, n, o, comm.Sum, l, func(r *rank) error {
					for _, step := range []int{0, 1, 3} {
						got, err := r.step(step, faulty)
						if err != nil {
							return err
						}
						straight.put(r.g.Rank(), got)
					}
					return nil
				})
				if a, b := whole(t, skipping.by), whole(t, straight.by); fmt.Sprint(a) != fmt.Sprint(b) {
					t.Errorf("the step behind the one that was taken back is another than without it")
				}
			}
		})
	}
}

// values is all numbers of what is kept, as text.
func values(list []State) string {
	text := ""
	for _, s := range list {
		text += fmt.Sprintln(s.Name, s.F32())
	}
	return text
}

// A skipped window is taken back as a whole, whatever its number of micro-steps.
func TestDiscardTakesBackAllMicroSteps(t *testing.T) {
	for _, o := range schemes[2:] {
		onRanks(t, 2, o, comm.Sum, layout(odd(), 2, true, 1500), func(r *rank) error {
			if _, err := r.step(0, noise); err != nil {
				return err
			}
			before := values(r.c.State())
			r.c.Begin()
			for i := range 3 {
				if _, err := r.reduce(1+i, noise); err != nil {
					return err
				}
			}
			r.c.Discard()
			if values(r.c.State()) != before {
				return fmt.Errorf("%s keeps something of a window that was taken back", o.Scheme)
			}
			return nil
		})
	}
}

// Buckets that lie anew keep what is owed of each parameter.
func TestAnotherLayoutKeepsWhatIsOwed(t *testing.T) {
	for _, o := range schemes[2:] {
		params := odd()
		turned := slices.Clone(params)
		slices.Reverse(turned)
		first, second := layout(params, 2, false, 700), layout(turned, 2, false, 3000)
		onRanks(t, 2, o, comm.Sum, first, func(r *rank) error {
			if _, err := r.step(0, noise); err != nil {
				return err
			}
			before := values(r.c.State())
			if err := r.open(second); err != nil {
				return err
			}
			if values(r.c.State()) != before {
				return fmt.Errorf("%s: another layout changes what is kept", o.Scheme)
			}
			owed := map[string][]float32{}
			for _, s := range r.c.State() {
				owed[s.Name] = slices.Clone(s.F32())
			}
			// Without new gradients, all that can arrive is what is owed.
			if _, err := r.step(1, func(*param.Param, int, int, int) float32 { return 0 }); err != nil {
				return err
			}
			less := 0
			for _, s := range r.c.State() {
				if strings.HasPrefix(s.Name, "error.") && squares(s.F32()) < squares(owed[s.Name]) {
					less++
				}
			}
			if less < 2 {
				return fmt.Errorf("%s: of %d parameters less is owed", o.Scheme, less)
			}
			return nil
		})
	}
}

// What is said to be sent is what the transport counts, and what is said to be allocated
// is what was asked for.
func TestBytesAndMemoryAreThoseOfThePlan(t *testing.T) {
	everywhere(t, schemes, func(t *testing.T, o Options, n int, scatter bool) {
		params := []*param.Param{{Name: "a", Shape: []int{300, 200}, DType: dtype.F32}, {Name: "b", Shape: []int{77}, DType: dtype.F32},
			{Name: "c", Shape: []int{513, 99}, DType: dtype.F32}}
		l := layout(params, n, scatter, 1<<30)
		onRanks(t, n, o, comm.Sum, l, func(r *rank) error {
			cost := r.c.Cost(l)
			if n == 1 {
				if cost != (Cost{}) {
					return fmt.Errorf("one rank: %+v", cost)
				}
				return nil
			}
			if cost.Memory != r.memory {
				return fmt.Errorf("%d bytes were allocated, the plan says %d", r.memory, cost.Memory)
			}
			transported := func() (sent int64) {
				for _, w := range r.g.Stats().Wires {
					sent += w.Sent
				}
				return sent
			}
			before := transported()
			if _, err := r.step(0, noise); err != nil {
				return err
			}
			sent := transported() - before
			if off := math.Abs(float64(sent - cost.Sent)); r.sent != cost.Sent || off > 0.01*float64(cost.Sent)+64 {
				return fmt.Errorf("the transport sent %d bytes, the hook says %d, the plan %d", sent, r.sent, cost.Sent)
			}
			if s := r.c.Stats(); s.Sent != cost.Sent || s.Plain != cost.Plain || !(s.Given > 0) || !(s.Lost >= 0 && s.Lost < s.Given) {
				return fmt.Errorf("stats %+v, cost %+v", s, cost)
			}
			least := map[Scheme]float64{FP16: 1.99, BF16: 1.99, Int8: 3.9, TopK: 3, PowerSGD: 24}[o.Scheme]
			if factor := float64(cost.Plain) / float64(cost.Sent); factor < least && (o.Scheme != TopK || scatter) {
				return fmt.Errorf("only %.2f times fewer bytes", factor)
			}
			return nil
		})
	})
}

// The error that is reported is the one that is made.
func TestTheErrorIsMeasured(t *testing.T) {
	for _, o := range schemes {
		onRanks(t, 2, o, comm.Sum, layout(odd(), 2, true, 1500), func(r *rank) error {
			if _, err := r.step(0, noise); err != nil {
				return err
			}
			given, lost := 0.0, 0.0
			for _, p := range odd() {
				for e := range p.Numel() {
					x := float64(noise(p, r.g.Rank(), 0, e))
					given += x * x
					y := x
					switch o.Scheme {
					case FP16:
						y = float64(dtype.F16To(dtype.F16From(float32(x))))
					case BF16:
						y = float64(dtype.BF16To(dtype.BF16From(float32(x))))
					}
					lost += (x - y) * (x - y)
				}
			}
			for _, s := range r.c.State() {
				if strings.HasPrefix(s.Name, "error.") {
					lost += squares(s.F32())
				}
			}
			if s := r.c.Stats(); !(math.Abs(s.Given-given) <= 1e-6*given) || !(math.Abs(s.Lost-lost) <= 1e-6*lost) {
				return fmt.Errorf("%s: %v of %v, want %v of %v", o.Scheme, s.Lost, s.Given, lost, given)
			}
			return nil
		})
	}
}

func TestWhatCannotBeCompressedIsRefused(t *testing.T) {
	for _, x := range []struct {
		o    Options
		want string
	}{
		{Options{}, `there is no scheme ""`},
		{Options{Scheme: "zip"}, `there is no scheme "zip": want fp16, bf16, int8, powersgd or topk`},
		{Options{Scheme: Int8, Rank: 2}, "Rank is for powersgd, and the scheme is int8"},
		{Options{Scheme: PowerSGD, Rank: -1}, "Rank is -1: want at least 1"},
		{Options{Scheme: PowerSGD, MinRate: 0.5}, "MinRate is 0.5"},
		{Options{Scheme: PowerSGD, Start: -1}, "Start is -1"},
		{Options{Scheme: TopK, Fraction: 1.5}, "Fraction is 1.5: want above 0 and at most 1"},
		{Options{Scheme: TopK, Fraction: nan}, "Fraction is NaN"},
		{Options{Scheme: BF16, Fraction: 0.5}, "Fraction is for topk"},
	} {
		if _, err := New(x.o); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v, want %q", x.o, err, x.want)
		}
	}
	l := layout(odd(), 2, false, 1500)
	onRanks(t, 2, Options{Scheme: Int8}, comm.Sum, l, func(r *rank) error {
		wide := layout(odd(), 2, false, 1500)
		wide.Buckets[0].DType = dtype.F64
		for _, o := range schemes {
			gpu := r.env()
			gpu.Device = devicetest.NewGPU(t)
			other, _ := New(o)
			err := other.Open(gpu, l)
			if _, any := other.scheme.(half); any != (err == nil) || err != nil && !strings.Contains(err.Error(), "works on host memory, and gradients lie in memory of cuda:0: use fp16 or bf16") {
				return fmt.Errorf("%s on a GPU: %v", o.Scheme, err)
			}
			gpu.Op = comm.Avg
			if err := other.Open(gpu, l); err == nil {
				return fmt.Errorf("%s makes means on a GPU", o.Scheme)
			}
			if err := other.Open(r.env(), wide); err == nil || !strings.Contains(err.Error(), "gradients of p0 in f64") {
				return fmt.Errorf("%s of f64: %v", o.Scheme, err)
			}
		}
		again := r.env()
		again.Group = other{r.g}
		if err := r.c.Open(again, l); err == nil || !strings.Contains(err.Error(), "needs a compressor of its own") {
			return fmt.Errorf("a second owner: %v", err)
		}
		less := layout(odd()[1:], 2, false, 1500)
		if err := r.c.Open(r.env(), less); err == nil || !strings.Contains(err.Error(), "needs a compressor of its own") {
			return fmt.Errorf("another model: %v", err)
		}
		return nil
	})
	if _, err := GroupOf(t); err == nil || !strings.Contains(err.Error(), "lacks AllToAll") {
		t.Errorf("a group without AllToAll: %v", err)
	}
}

type other struct{ *comm.Group }

// An error of a collective, or of what runs between them, ends the stream.
func TestADeadGroupFailsTheStream(t *testing.T) {
	l := layout(odd(), 2, false, 1500)
	for _, o := range schemes {
		groups, err := comm.Local(2)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for _, g := range groups {
			all.Go(func() {
				s := device.NewCPUStream("comm", nil)
				defer s.Close()
				c, _ := New(o)
				r := &rank{t: t, g: g, s: s, c: c}
				if err := r.open(l); err != nil {
					t.Error(err)
				}
				if g.Rank() == 1 {
					g.Abort(fmt.Errorf("the test ends here"))
				}
				if _, err := r.step(0, noise); err == nil || !strings.Contains(err.Error(), "the test ends here") {
					t.Errorf("%s: rank %d: %v", o.Scheme, g.Rank(), err)
				}
				g.Close()
			})
		}
		all.Wait()
	}
}
