package ddp

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

// seven is a model of odd sizes; small makes five buckets of it.
func seven() []*param.Param {
	params := list("embed", 21, "a.w", 12, "a.b", 3, "b.w", 33, "b.b", 1, "frozen", 8, "head", 40)
	params[5].Frozen = true
	return params
}

var small = PlanOptions{FirstBucket: 64, BucketCap: 48}

// gradient is what rank r writes for element e of parameter i in one micro-step:
// small integers, so that every sum is exact.
func gradient(r, step, micro, i, e int) float32 {
	return float32((r+1)*(i+2) + 3*step + 5*micro + e%4)
}

// The gradient is the sum over all ranks and all micro-steps of a window,
// divided once by the ranks for Avg, whatever order the ranks go in, before and
// after the rebuild; and the norm over the flat buckets is that of the gradients.
func TestGradientIsTheSumOverRanksAndMicroSteps(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 7} {
		for _, accumulate := range []int{1, 4} {
			for _, o := range []Options{
				{PlanOptions: small},
				{PlanOptions: small, NoOverlap: true},
				{PlanOptions: small, FindUnused: true},
				{PlanOptions: small, FindUnused: true, StaticGraph: true},
				{PlanOptions: small, Op: comm.Avg},
				{PlanOptions: small, ReduceDType: dtype.F64},
				{},
			} {
				name := fmt.Sprintf("ranks=%d accumulate=%d buckets=%d op=%s overlap=%t unused=%t static=%t reduce=%s",
					n, accumulate, o.BucketCap, o.Op, !o.NoOverlap, o.FindUnused, o.StaticGraph, o.ReduceDType)
				t.Run(name, func(t *testing.T) { sumTest(t, n, accumulate, o) })
			}
		}
	}
}

func sumTest(t *testing.T, n, accumulate int, o Options) {
	calls := make([][]string, n)
	ranks(t, n, seven, func(w *worker) {
		if !w.start(o) {
			return
		}
		for step := range 3 {
			for micro := range accumulate {
				if !w.ok("StepBegin", w.ddp.StepBegin(micro == accumulate-1)) {
					return
				}
				for k := range w.params {
					i := (len(w.params) - 1 - k + w.rank*(step+1)) % len(w.params)
					if p := w.params[i]; !p.Frozen {
						w.give(p, func(e int) float32 { return gradient(w.rank, step, micro, i, e) })
					}
				}
				if !w.ok("Finish", w.ddp.Finish(w.ctx)) {
					return
				}
			}
			if !w.synchronize() {
				return
			}
			norm := 0.0
			for i, p := range w.params {
				if p.Frozen {
					continue
				}
				want := func(e int) float64 {
					sum := 0.0
					for r := range n {
						for micro := range accumulate {
							sum += float64(gradient(r, step, micro, i, e))
						}
					}
					if o.Op == comm.Avg {
						sum /= float64(n)
					}
					return float64(float32(sum))
				}
				w.holds(p.Name, w.ddp.Grad(p), want)
				for e := range p.Numel() {
					norm += want(e) * want(e)
				}
			}
			flat := 0.0
			for _, b := range w.ddp.Buckets() {
				for _, x := range w.see(b.Flat).F32() {
					flat += float64(x) * float64(x)
				}
			}
			if !(math.Abs(flat-norm) <= 1e-12*norm) {
				t.Errorf("rank %d: squared norm of the buckets is %v, of the gradients %v", w.rank, flat, norm)
			}
		}
		if c := w.calls(); c != nil {
			calls[w.rank] = c
		}
	})
	checkCalls(t, n, len(mustPlan(t, seven(), o.PlanOptions).Buckets), calls)
}

func checkCalls(t *testing.T, n, buckets int, calls [][]string) {
	t.Helper()
	reduces := 0
	for _, c := range calls[0] {
		if strings.HasPrefix(c, "AllReduce(") && !strings.Contains(c, "i32") {
			reduces++
		}
	}
	want := 3 * buckets
	if n == 1 {
		want = 0
	}
	if reduces != want {
		t.Errorf("%d reductions in 3 steps of %d buckets on %d ranks", reduces, buckets, n)
	}
	for r := range calls {
		if !slices.Equal(calls[r], calls[0]) {
			t.Errorf("rank %d made the calls %v, rank 0 %v", r, calls[r], calls[0])
		}
	}
}

// The second half of the backward pass is held back until the first bucket is
// reduced on every rank. If that bucket left any later, nothing would go on.
func TestFirstBucketLeavesBeforeHalfOfTheBackwardPass(t *testing.T) {
	ranks(t, 3, seven, func(w *worker) {
		if !w.start(Options{PlanOptions: small}) || !w.ok("StepBegin", w.ddp.StepBegin(true)) {
			return
		}
		for k := range w.params {
			p := w.params[len(w.params)-1-k]
			if k == len(w.params)/2 {
				first := w.ddp.buckets[0].done
				if first == nil {
					w.t.Errorf("rank %d: the first bucket has not left before %s", w.rank, p.Name)
					w.group.Abort(fmt.Errorf("the test has failed"))
					return
				}
				w.compute.Wait(first)
			}
			if !p.Frozen {
				w.give(p, constant(1))
			}
		}
		if !w.ok("Finish", w.ddp.Finish(w.ctx)) {
			return
		}
		s, err := w.ddp.Stats(w.ctx)
		if !w.ok("Stats", err) {
			return
		}
		if s.Buckets[0].Done > s.End {
			w.t.Errorf("rank %d: the first bucket was done at %s, the backward pass at %s", w.rank, s.Buckets[0].Done, s.End)
		}
	})
}

// Stats are in the order of events: a bucket is ready, starts, is done, before
// the next; the compute stream goes on after the last. Without overlap nothing
// starts before the end of the backward pass, and exposed is all of it.
func TestStatsFollowTheEvents(t *testing.T) {
	ranks(t, 1, seven, func(w *worker) {
		if !w.start(Options{PlanOptions: small}) || !w.step(1) {
			return
		}
		if s, err := w.ddp.Stats(w.ctx); err != nil || s.Bytes != 0 {
			w.t.Errorf("one rank reduced %d bytes (%v)", s.Bytes, err)
		}
	})
	for _, overlap := range []bool{true, false} {
		ranks(t, 2, seven, func(w *worker) {
			if !w.start(Options{PlanOptions: small, NoOverlap: !overlap}) {
				return
			}
			if _, err := w.ddp.Stats(w.ctx); err == nil {
				w.t.Error("Stats before the first step gave no error")
			}
			for range 3 {
				if !w.step(1) {
					return
				}
				s, err := w.ddp.Stats(w.ctx)
				if !w.ok("Stats", err) {
					return
				}
				before := s.Buckets[0].Start
				bytes := 0
				for i, b := range s.Buckets {
					if b.Start < b.Ready || b.Done < b.Start || b.Start < before {
						w.t.Errorf("bucket %d: %+v, the one before it was done at %s", i, b, before)
					}
					if !overlap && b.Start < s.End {
						w.t.Errorf("without overlap bucket %d starts at %s, the backward pass ends at %s", i, b.Start, s.End)
					}
					before = b.Done
					bytes += w.ddp.plan.Buckets[i].Padded
				}
				if s.End+s.Exposed < before {
					w.t.Errorf("the compute stream went on at %s, before the last reduction was done at %s", s.End+s.Exposed, before)
				}
				if int(s.Bytes) != bytes {
					w.t.Errorf("%d bytes, the buckets have %d", s.Bytes, bytes)
				}
			}
		})
	}
}

// The plan is rebuilt after the first synced step in the order that rank 0 saw,
// once; a DDP that is given this order has the same plan from the start.
func TestRebuildFollowsRankZero(t *testing.T) {
	ranks(t, 3, seven, func(w *worker) {
		if !w.start(Options{PlanOptions: small}) {
			return
		}
		declared := w.ddp.Plan()
		orders := [][]int{{6, 2, 3, 0, 1, 4}, {0, 1, 2, 3, 4, 6}, {6, 4, 3, 2, 1, 0}}
		want := []string{"head", "a.b", "b.w", "embed", "a.w", "b.b"}
		for step := range 3 {
			if !w.ok("StepBegin", w.ddp.StepBegin(true)) {
				return
			}
			for _, i := range orders[(w.rank+step)%3] {
				w.give(w.params[i], constant(1))
			}
			if !w.ok("Finish", w.ddp.Finish(w.ctx)) {
				return
			}
			if got := w.ddp.Order(); !slices.Equal(got, want) {
				w.t.Errorf("rank %d, step %d: order %v, want %v", w.rank, step, got, want)
			}
			if rebuilt := w.ddp.Plan() != declared; rebuilt != (step > 0) {
				w.t.Errorf("rank %d, step %d: rebuilt is %t", w.rank, step, rebuilt)
			}
		}
		if !w.synchronize() {
			return
		}
		rebuilt := w.ddp.Plan()
		o := Options{PlanOptions: small}
		o.Order = w.ddp.Order()
		if !w.start(o) || !w.step(1) {
			return
		}
		if w.ddp.Plan().Hash() != rebuilt.Hash() || !slices.Equal(w.ddp.Order(), want) {
			w.t.Errorf("rank %d: with the recorded order the plan is\n%swant\n%s", w.rank, w.ddp.Plan(), rebuilt)
		}
	})
}

// What reads the gradients after Finish still sees them when it runs after the
// host has begun the next step and rebuilt the plan.
func TestRebuildComesAfterTheReaders(t *testing.T) {
	ranks(t, 2, seven, func(w *worker) {
		if !w.start(Options{PlanOptions: small}) || !w.ok("StepBegin", w.ddp.StepBegin(true)) {
			return
		}
		for i, p := range w.params { // the reverse of the plan's order: everything moves
			if !p.Frozen {
				w.give(p, constant(float32(i+1)))
			}
		}
		if !w.ok("Finish", w.ddp.Finish(w.ctx)) {
			return
		}
		gate := make(chan struct{})
		w.compute.Do("hold the optimizer", func() error {
			<-gate
			return nil
		})
		for i, p := range w.params {
			if p.Frozen {
				continue
			}
			grad := w.ddp.Grad(p)
			w.compute.Do("optimizer", func() error {
				w.holds(p.Name, grad, exactly(float64(2*(i+1))))
				return nil
			})
		}
		err := w.ddp.StepBegin(false)
		close(gate)
		if !w.ok("StepBegin", err) {
			return
		}
		_, err = w.ddp.Stats(w.ctx)
		w.wants(err, "Stats must follow") // the old buckets' events are gone
		w.synchronize()
	})
}

// A model may ask for a gradient several times (tied weights): the first answer
// overwrites, later ones add.
func TestSecondWriterAdds(t *testing.T) {
	ranks(t, 3, seven, func(w *worker) {
		if !w.start(Options{}) {
			return
		}
		for range 2 {
			if !w.ok("StepBegin", w.ddp.StepBegin(true)) {
				return
			}
			for _, p := range w.params {
				if !p.Frozen {
					w.write(p, constant(1))
					w.give(p, constant(10))
				}
			}
			if !w.ok("Finish", w.ddp.Finish(w.ctx)) || !w.synchronize() {
				return
			}
			w.holds("head", w.ddp.Grad(w.params[6]), exactly(33))
		}
	})
}

// Sixteen-bit gradients that overflow or lose bits in their own type are reduced
// in f32.
func TestReduceDType(t *testing.T) {
	params := func() []*param.Param { return list("w", 70, "v", 5) }
	ranks(t, 4, params, func(w *worker) {
		if !w.start(Options{PlanOptions: PlanOptions{GradDType: dtype.F16}, ReduceDType: dtype.F32, Op: comm.Avg}) || !w.step(60000) {
			return
		}
		if dt := w.ddp.Grad(w.params[0]).DType; dt != dtype.F16 {
			w.t.Errorf("gradient is of type %s", dt)
		}
		w.holds("w", w.ddp.Grad(w.params[0]), exactly(60000)) // the sum, 240000, is an f16 infinity
		if s, err := w.ddp.Stats(w.ctx); err != nil || s.Bytes != 4*(128+128) {
			w.t.Errorf("%d bytes travelled (%v), want those of f32", s.Bytes, err)
		}
	})
}

func TestFinite(t *testing.T) {
	for norm, want := range map[float64]bool{0: true, 1e300: true, math.Inf(1): false, math.NaN(): false} {
		if Finite(norm) != want {
			t.Errorf("Finite(%v) is %t", norm, !want)
		}
	}
}

// NaN on one rank is NaN on all after the reduction.
func TestNaNReachesEveryRank(t *testing.T) {
	ranks(t, 3, seven, func(w *worker) {
		value := float32(1)
		if w.rank == 1 {
			value = float32(math.NaN())
		}
		if !w.start(Options{}) || !w.step(value) {
			return
		}
		norm := 0.0
		for _, b := range w.ddp.Buckets() {
			for _, x := range w.see(b.Flat).F32() {
				norm += float64(x) * float64(x)
			}
		}
		if Finite(norm) {
			w.t.Errorf("rank %d has norm %v", w.rank, norm)
		}
	})
}

// silent is a group whose reduction has nothing to do.
type silent struct {
	*fakeGroup
	size int
}

func (g *silent) Size() int { return g.size }

func (g *silent) AllReduce(device.Stream, device.Buffer, dtype.DType, comm.Op) *comm.Work { return nil }

// In steady state a step costs a fixed number of small allocations, those of the
// streams' events and closures; they do not grow with the parameters.
func TestAllocationsPerStep(t *testing.T) {
	fewest := 0
	for _, n := range []int{10, 200} {
		var params []*param.Param
		for i := range n {
			params = append(params, &param.Param{Name: fmt.Sprint("w", i), Shape: []int{16}, DType: dtype.F32})
		}
		compute, comms := device.NewCPUStream("compute", nil), device.NewCPUStream("comm", nil)
		g := &silent{newHub(1)[0], 1}
		d, err := New(t.Context(), g, compute, comms, params, Options{})
		if err != nil {
			t.Fatal(err)
		}
		step := func() {
			if err := d.StepBegin(true); err != nil {
				t.Fatal(err)
			}
			for _, p := range slices.Backward(params) {
				d.Get(p)
				d.Ready(p)
			}
			if err := d.Finish(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := compute.Synchronize(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		g.size = 2
		step()
		allocs := int(testing.AllocsPerRun(50, step))
		for range 4 { // what else runs in this process is counted too, but not each time
			allocs = min(allocs, int(testing.AllocsPerRun(50, step)))
		}
		t.Logf("%d parameters, one bucket: %d allocations a step", n, allocs)
		if fewest == 0 {
			fewest = allocs
		}
		if allocs != fewest || allocs > 30 {
			t.Errorf("%d parameters cost %d allocations, 10 cost %d", n, allocs, fewest)
		}
		compute.Close()
		comms.Close()
	}
}
