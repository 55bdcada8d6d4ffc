package compress

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/device/devicetest"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

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
			if _, is := other.scheme.(half); is != (err == nil) || err != nil && !strings.Contains(err.Error(), "works on host memory, and gradients lie in memory of cuda:0: use fp16 or bf16") {
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
