package zero

import (
	"errors"
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

// give is a backward pass that writes nothing, but for parameters left out.
func (w *worker) give(but int) {
	for i, p := range slices.Backward(w.params) {
		if i != but && !p.Frozen {
			w.zero.Get(p)
			w.zero.Ready(p)
		}
	}
}

// What one rank does wrong in a micro-step is named there, with the rank, and
// reaches the others in the same step; in the next at the latest where all buckets
// had left before.
func TestMisuseIsNamedOnEveryRank(t *testing.T) {
	stranger := &param.Param{Name: "stranger", Shape: []int{1}, DType: dtype.F32}
	for _, c := range []struct {
		name string
		do   func(w *worker) // rank 1's second backward pass
		want string
	}{
		{"missing", func(w *worker) { w.give(5) }, "no gradient for b.w: every trainable parameter must be Ready"},
		{"twice", func(w *worker) { w.give(-1); w.zero.Ready(w.params[0]) }, "Ready of embed twice"},
		{"unknown", func(w *worker) { w.zero.Ready(stranger); w.give(-1) }, "Ready of stranger, which is not in the parameter list"},
		{"frozen", func(w *worker) { w.zero.Ready(w.params[4]); w.give(-1) }, "Ready of frozen, which is frozen"},
		{"get after ready", func(w *worker) { w.give(-1); w.zero.Get(w.params[2]) }, "Get of a.b after its Ready"},
		{"ready without get", func(w *worker) { w.give(6); w.zero.Ready(w.params[6]) }, "Ready of b.one without Get"},
		{"begin twice", func(w *worker) { w.zero.StepBegin(true) }, "StepBegin before the last micro-step's Finish"},
		{"gather within", func(w *worker) { w.zero.Gather() }, "Gather within a micro-step"},
	} {
		for stage := 1; stage <= 3; stage++ {
			t.Run(fmt.Sprintf("%s stage=%d", c.name, stage), func(t *testing.T) {
				ranks(t, 3, toyF32, func(w *worker) {
					o := Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 100, BucketCap: 1003}}
					if !w.start(o) || !w.ok("StepBegin", w.zero.StepBegin(true)) {
						return
					}
					w.give(-1)
					if !w.ok("Finish", w.zero.Finish(w.ctx)) || !w.synchronize() {
						return
					}
					w.meet()
					if !w.ok("StepBegin", w.zero.StepBegin(true)) {
						return
					}
					if w.rank == 1 {
						c.do(w)
						err := w.zero.Finish(w.ctx)
						w.wants(err, c.want, "rank 1", "micro-step 2")
						if again := w.zero.StepBegin(true); again != err || w.zero.Err() != err || w.zero.Gather() != err {
							t.Errorf("the error is not kept: %v", again)
						}
						return
					}
					var err error
					for step := 0; step < 2 && err == nil; step++ { // its buckets may have left before
						if step > 0 {
							w.zero.StepBegin(true)
						}
						w.give(-1)
						err = errors.Join(w.zero.Finish(w.ctx), w.compute.Synchronize(w.ctx))
					}
					w.wants(err, c.want, "rank 1", "micro-step 2")
				})
			})
		}
	}
}

// Options and parameters that differ fail on every rank, which names them.
func TestDifferencesAreNamedOnEveryRank(t *testing.T) {
	for want, change := range map[string]func(o *Options, params []*param.Param){
		"Options.Stage: ranks 0, 2 have 2, rank 1 has 3":              func(o *Options, _ []*param.Param) { o.Stage = 3 },
		"Options.Op: ranks 0, 2 have sum, rank 1 has avg":             func(o *Options, _ []*param.Param) { o.Op = comm.Avg },
		"a.w: ranks 0, 2 have f32[33] in block 1, rank 1 has f32[34]": func(_ *Options, p []*param.Param) { p[1].Shape = []int{34} },
		"in block 2 frozen, rank 1 has f32[130] in block 2":           func(_ *Options, p []*param.Param) { p[4].Frozen = false },
		"shard plan: ": func(o *Options, p []*param.Param) {
			o.Order = []string{"embed", "a.w", "a.b", "a.none", "b.w", "b.one", "c.w", "c.b"}
		},
	} {
		ranks(t, 3, toyF32, func(w *worker) {
			o := Options{PlanOptions: PlanOptions{Stage: 2}}
			if w.rank == 1 {
				change(&o, w.params)
			}
			w.wants(w.new(o), "the ranks' parameters or options differ", want)
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	wide := toyF32()
	wide[1].DType = dtype.F64
	double := append(toyF32(), toyF32()[0])
	frozen := toyF32()
	for _, p := range frozen {
		p.Frozen = true
	}
	for want, c := range map[string]struct {
		params []*param.Param
		o      Options
	}{
		"Stage is 0: want 1, 2 or 3":         {toyF32(), Options{}},
		"Stage is 4":                         {toyF32(), Options{PlanOptions: PlanOptions{Stage: 4}}},
		"Op is max":                          {toyF32(), Options{PlanOptions: PlanOptions{Stage: 1}, Op: comm.Max}},
		"GradDType is f64":                   {toyF32(), Options{PlanOptions: PlanOptions{Stage: 1, GradDType: dtype.F64}}},
		"ReduceDType is i32":                 {toyF32(), Options{PlanOptions: PlanOptions{Stage: 1, ReduceDType: dtype.I32}}},
		"BucketCap -1":                       {toyF32(), Options{PlanOptions: PlanOptions{Stage: 1, BucketCap: -1}}},
		"parameter a.w is f64":               {wide, Options{PlanOptions: PlanOptions{Stage: 1}}},
		"two parameters are called embed":    {double, Options{PlanOptions: PlanOptions{Stage: 1}}},
		"no parameter is trainable":          {frozen, Options{PlanOptions: PlanOptions{Stage: 1}}},
		"Order names x, which the model":     {toyF32(), Options{PlanOptions: PlanOptions{Stage: 1, Order: []string{"x"}}}},
		"Order names frozen, which is":       {toyF32(), Options{PlanOptions: PlanOptions{Stage: 1, Order: []string{"frozen"}}}},
		"Order lacks c.b: it must name":      {toyF32(), Options{PlanOptions: PlanOptions{Stage: 1, Order: []string{"embed"}}}},
		"Tied names x, which the model":      {toyF32(), Options{PlanOptions: PlanOptions{Stage: 1, Tied: []string{"embed", "x"}}}},
		"Order names embed, which the model": {toyF32(), Options{PlanOptions: PlanOptions{Stage: 1, Order: []string{"embed", "embed"}}}},
	} {
		compute, comms := device.NewCPUStream("compute", nil), device.NewCPUStream("comm", nil)
		_, err := New(t.Context(), newHub(1)[0], compute, comms, c.params, c.o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
		compute.Close()
		comms.Close()
	}
}

// In stage 3 a second block in use, a weight outside of its block's use, and a
// gradient that no memory is for panic.
func TestWeightsOutsideOfTheirUsePanic(t *testing.T) {
	ranks(t, 1, toyF32, func(w *worker) {
		if !w.start(Options{PlanOptions: PlanOptions{Stage: 3}}) {
			return
		}
		w.zero.Use(1)
		for want, do := range map[string]func(){
			"Use(2) while block 1 is in use":         func() { w.zero.Use(2) },
			"Done(2) of a block that is not in use":  func() { w.zero.Done(2) },
			"Weight of embed outside of its block's": func() { w.zero.Weight(w.params[0]) },
			"frozen has no gradient: it is frozen":   func() { w.zero.Get(w.params[4]) },
			"x has no gradient: it is not in the":    func() { w.zero.Get(&param.Param{Name: "x"}) },
			"x has no weight: it is not in the":      func() { w.zero.Weight(&param.Param{Name: "x"}) },
			"x is not in the parameter list":         func() { w.zero.Held(&param.Param{Name: "x"}) },
		} {
			func() {
				defer func() {
					if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
						w.t.Errorf("panic %q, want one with %q", got, want)
					}
				}()
				do()
			}()
		}
		w.zero.Use(7) // a block without parameters
		w.zero.Done(7)
		w.zero.Done(1)
	})
}

// A NaN of one rank is in every rank's norm, and a step that is skipped changes
// nothing, whether the weights are gathered or not; training goes on behind it.
func TestNaNIsSkippedByAll(t *testing.T) {
	for stage := 1; stage <= 3; stage++ {
		for _, gather := range []bool{false, true} {
			t.Run(fmt.Sprintf("stage=%d gather=%t", stage, gather), func(t *testing.T) {
				ranks(t, 3, paramsOf(dtype.BF16), func(w *worker) {
					if !w.start(Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 100, BucketCap: 1003}}) {
						return
					}
					r := w.train(2)
					if !r.load() || !r.steps(2) {
						return
					}
					before := r.weights()
					if w.rank == 1 {
						r.model.value = func(sample, e int, x, mean float64) float64 {
							if e == 2 {
								return math.NaN()
							}
							return gradient(sample, e, x, mean)
						}
					}
					if !r.enqueue() || gather && !w.ok("Gather", w.zero.Gather()) || !w.synchronize() {
						return
					}
					if !math.IsNaN(r.norms[2]) {
						w.t.Errorf("rank %d: the norm is %v", w.rank, r.norms[2])
					}
					r.applied--
					equal(w.t, fmt.Sprintf("rank %d", w.rank), outcome{r.weights(), nil}, outcome{before, nil}, 0)
					r.model.value = nil
					if r.steps(1) && !(r.norms[3] > 0) {
						w.t.Errorf("rank %d: behind the skipped step the norm is %v", w.rank, r.norms[3])
					}
				})
			})
		}
	}
}

// Ranks whose gradients become ready in different orders get what equal ones do: in
// stages 1 and 2 in any order, in stage 3 within a block. In stage 3 other orders
// of the blocks are other collectives, which end the group.
func TestReadyOrders(t *testing.T) {
	orders := [][]int{nil, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {5, 3, 4, 9, 8, 10, 0, 6, 7, 2, 1}}
	within := [][]int{nil, {9, 10, 7, 8, 6, 4, 5, 1, 2, 3, 0}, {10, 8, 9, 7, 5, 6, 4, 1, 3, 2, 0}}
	for stage := 1; stage <= 3; stage++ {
		if stage == 3 {
			orders = within
		}
		want := trainDDP(t, "hub", 3, 1, 3, toyF32, ddpOptions)
		ranks(t, 3, toyF32, func(w *worker) {
			if !w.start(Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 100, BucketCap: 403}}) {
				return
			}
			r := w.train(1)
			r.model.order = orders[w.rank]
			if r.load() && r.steps(3) {
				equal(w.t, fmt.Sprintf("stage %d, rank %d", stage, w.rank), outcome{r.weights(), r.norms}, want, 0)
			}
		}, "hub", "gpu")
	}
	ranks(t, 3, toyF32, func(w *worker) {
		if !w.start(Options{PlanOptions: PlanOptions{Stage: 3, FirstBucket: 100, BucketCap: 403}}) {
			return
		}
		r := w.train(1)
		if w.rank == 1 {
			r.model.order = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
		}
		err := error(nil)
		if r.load() {
			if err = r.model.step(w.ctx, w.zero, w.rank, w.size, 1); err == nil {
				err = w.compute.Synchronize(w.ctx)
			}
		}
		w.wants(err, "rank", " called ", "AllGather(") // whoever comes last names both calls
	})
}

// In stage 3 blocks of one size could be gathered one for another, as the same calls
// on every rank: a rank that uses them in another order is named, on every rank.
func TestBlocksInAnotherOrderAreNamed(t *testing.T) {
	const layers = 6
	ranks(t, 3, func() []*param.Param { return deep(layers, dtype.F32) }, func(w *worker) {
		if !w.start(Options{PlanOptions: PlanOptions{Stage: 3, FirstBucket: 100, BucketCap: 1003}, NoOverlap: true}) {
			return
		}
		for range 2 { // equal orders are fine, whatever they are
			for _, block := range []int{2, 1, 0} {
				w.zero.Use(block)
				w.zero.Done(block)
			}
			if !w.ok("StepBegin", w.zero.StepBegin(true)) {
				return
			}
			w.pass(layers)
			if !w.ok("Finish", w.zero.Finish(w.ctx)) || !w.synchronize() || !w.ok("Gather", w.zero.Gather()) {
				return
			}
		}
		w.meet()
		order := []int{0, 1, 2, 3, 4, 5}
		if w.rank == 1 {
			order = []int{0, 2, 1, 3, 4, 5}
		}
		if !w.ok("StepBegin", w.zero.StepBegin(true)) {
			return
		}
		for _, block := range order {
			w.zero.Use(block)
			w.zero.Done(block)
		}
		for block := layers - 1; block >= 0; block-- {
			w.zero.Use(block)
			for i := range 3 {
				w.zero.Get(w.params[3*block+i])
				w.zero.Ready(w.params[3*block+i])
			}
			w.zero.Done(block)
		}
		err := errors.Join(w.zero.Finish(w.ctx), w.zero.hostComm.Synchronize(w.ctx), w.compute.Synchronize(w.ctx))
		w.wants(err, "stage 3", "rank 1 on ", "uses the model's blocks in another order than rank 0 on ")
	})
}
