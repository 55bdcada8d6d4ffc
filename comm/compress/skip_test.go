package compress

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/param"
)

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
