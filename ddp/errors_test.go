package ddp

import (
	"errors"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/device/devicetest"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

// What one rank does wrong in a micro-step is named there, with the rank, and
// reaches the others in the same step; in the next at the latest where all
// buckets had left before.
func TestMisuseIsNamedOnEveryRank(t *testing.T) {
	stranger := list("stranger", 1)[0]
	all := func(w *worker, but int) {
		for i, p := range w.params {
			if i != but && !p.Frozen {
				w.give(p, constant(1))
			}
		}
	}
	for _, c := range []struct {
		name string
		do   func(w *worker) // rank 1's second backward pass
		want string
		late bool // all buckets have left before
	}{
		{"missing", func(w *worker) { all(w, 3) }, "no gradient for b.w: every trainable parameter must be Ready", false},
		{"twice", func(w *worker) { all(w, -1); w.ddp.Ready(w.params[0]) }, "Ready of embed twice", true},
		{"unknown", func(w *worker) { w.ddp.Ready(stranger); all(w, -1) }, "Ready of stranger, which is not in the parameter list", false},
		{"frozen", func(w *worker) { w.ddp.Ready(w.params[5]); all(w, -1) }, "Ready of frozen, which is frozen", false},
		{"get after ready", func(w *worker) { all(w, -1); w.ddp.Get(w.params[2]) }, "Get of a.b after its Ready", true},
		{"ready without get", func(w *worker) { all(w, 4); w.ddp.Ready(w.params[4]) }, "Ready of b.b without Get", false},
		{"begin twice", func(w *worker) { w.ddp.StepBegin(true) }, "StepBegin before the last micro-step's Finish", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ranks(t, 3, seven, func(w *worker) {
				if !w.start(Options{PlanOptions: small}) || !w.step(1) {
					return
				}
				w.meet()
				if !w.ok("StepBegin", w.ddp.StepBegin(true)) {
					return
				}
				if w.rank != 1 {
					all(w, -1)
					err := w.ddp.Finish(w.ctx)
					if err == nil {
						err = w.compute.Synchronize(w.ctx)
					}
					if err == nil && c.late {
						w.ddp.StepBegin(true)
						all(w, -1)
						err = errors.Join(w.ddp.Finish(w.ctx), w.compute.Synchronize(w.ctx))
					}
					w.wants(err, c.want, "rank 1", "micro-step 2")
					return
				}
				c.do(w)
				err := w.ddp.Finish(w.ctx)
				w.wants(err, c.want, "rank 1", "micro-step 2")
				if again := w.ddp.StepBegin(true); again != err || w.ddp.Err() != err {
					t.Errorf("the error is not kept: %v", again)
				}
			})
		})
	}
}

func TestMisuseOutsideOfAStep(t *testing.T) {
	for want, do := range map[string]func(d *DDP, p *param.Param){
		"Get of embed outside":         func(d *DDP, p *param.Param) { d.Get(p) },
		"Ready of embed outside":       func(d *DDP, p *param.Param) { d.Ready(p) },
		"Finish without StepBegin":     func(d *DDP, p *param.Param) { d.Finish(t.Context()) },
		"no gradient for embed, a.w, ": func(d *DDP, p *param.Param) { d.StepBegin(false); d.Finish(t.Context()) },
	} {
		ranks(t, 1, seven, func(w *worker) {
			if w.start(Options{}) {
				do(w.ddp, w.params[0])
				w.wants(w.ddp.Err(), want, "rank 0")
			}
		})
	}
	ranks(t, 1, seven, func(w *worker) {
		defer func() {
			if s, _ := recover().(string); !strings.Contains(s, "frozen has no gradient: it is frozen") {
				t.Errorf("Get of a frozen parameter panicked with %q", s)
			}
		}()
		if w.start(Options{}) {
			w.ddp.Get(w.params[5])
		}
	})
}

// Ranks that differ all say in what, and who has what.
func TestInitialDifferencesAreNamedOnEveryRank(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(params []*param.Param, o *Options) []*param.Param // to rank 1 of 3
		want []string
	}{
		{"shape", func(l []*param.Param, o *Options) []*param.Param { l[1].Shape = []int{3, 5}; return l },
			[]string{"a.w: ranks 0, 2 have f32[12], rank 1 has f32[3 5]"}},
		{"dtype", func(l []*param.Param, o *Options) []*param.Param { l[1].DType = dtype.BF16; return l },
			[]string{"a.w: ranks 0, 2 have f32[12], rank 1 has bf16[12]"}},
		{"frozen", func(l []*param.Param, o *Options) []*param.Param { l[1].Frozen = true; return l },
			[]string{"a.w: ranks 0, 2 have f32[12], rank 1 has f32[12] frozen"}},
		{"decay", func(l []*param.Param, o *Options) []*param.Param { l[1].NoDecay = true; return l },
			[]string{"a.w: ranks 0, 2 have f32[12], rank 1 has f32[12] without weight decay"}},
		{"name", func(l []*param.Param, o *Options) []*param.Param { l[1].Name = "x"; return l },
			[]string{"a.w: ranks 0, 2 have f32[12], rank 1 has nothing", "x: ranks 0, 2 have nothing, rank 1 has f32[12]", "parameter 1: ranks 0, 2 have a.w, rank 1 has x"}},
		{"count", func(l []*param.Param, o *Options) []*param.Param { return append(l, list("more", 2)...) },
			[]string{"number of parameters: ranks 0, 2 have 7, rank 1 has 8", "more: ranks 0, 2 have nothing, rank 1 has f32[2]"}},
		{"order of declaration", func(l []*param.Param, o *Options) []*param.Param { l[0], l[1] = l[1], l[0]; return l },
			[]string{"parameter 0: ranks 0, 2 have embed, rank 1 has a.w"}},
		{"cap", func(l []*param.Param, o *Options) []*param.Param { o.BucketCap = 1 << 20; return l },
			[]string{"Options.BucketCap: ranks 0, 2 have 26214400, rank 1 has 1048576"}},
		{"op", func(l []*param.Param, o *Options) []*param.Param { o.Op = comm.Avg; return l },
			[]string{"Options.Op: ranks 0, 2 have sum, rank 1 has avg"}},
		{"static", func(l []*param.Param, o *Options) []*param.Param { o.StaticGraph = true; return l },
			[]string{"Options.StaticGraph: ranks 0, 2 have false, rank 1 has true"}},
		{"order", func(l []*param.Param, o *Options) []*param.Param {
			o.Order = []string{"embed", "a.w", "a.b", "b.w", "b.b", "head"}
			return l
		}, []string{"bucket plan: ranks 0, 2 have ", " in the default order, rank 1 has ", " in a given order"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ranks(t, 3, seven, func(w *worker) {
				var o Options
				if w.rank == 1 {
					w.params = c.do(w.params, &o)
				}
				w.wants(w.new(o), c.want...)
			})
		})
	}
}

// Where one rank cannot even plan, the others do not wait for it.
func TestRefusalOfOneRankReachesTheOthers(t *testing.T) {
	for want, bad := range map[string]Options{
		"Op is max":                           {Op: comm.Max},
		"ReduceDType is i32":                  {ReduceDType: dtype.I32},
		"BucketCap -5":                        {PlanOptions: PlanOptions{BucketCap: -5}},
		"a gradient cannot be of type u8":     {PlanOptions: PlanOptions{GradDType: dtype.U8}},
		"Order names x, which the model does": {PlanOptions: PlanOptions{Order: []string{"x"}}},
	} {
		ranks(t, 2, seven, func(w *worker) {
			var o Options
			if w.rank == 1 {
				o = bad
			}
			w.wants(w.new(o), want)
		})
	}
}

// otherStream is a stream that runs no Go functions.
type otherStream struct{ device.Stream }

// Streams must be of one device, and of a kind that work can be given to.
func TestNewRefusesOtherStreams(t *testing.T) {
	ranks(t, 1, seven, func(w *worker) {
		_, err := New(w.ctx, w.group, otherStream{w.compute}, w.comm, w.params, Options{})
		w.wants(err, "runs neither CUDA kernels nor Go functions (ddp.otherStream)")
	})
	ranks(t, 1, seven, func(w *worker) {
		if w.gpu == nil {
			return
		}
		_, err := New(w.ctx, w.group, w.compute, w.comm.(devicetest.Stream).CPUStream, w.params, Options{})
		w.wants(err, "the compute stream is of cuda:0, the communication stream of cpu")
	})
}

// A group that was made without the device gives host memory.
func TestNewRefusesAGroupOfAnotherDevice(t *testing.T) {
	ranks(t, 2, seven, func(w *worker) {
		if w.gpu == nil {
			return
		}
		w.group.(*fakeGroup).gpu = nil
		w.wants(w.new(Options{}), "memory of another device than that of the streams, cuda:0")
	})
}
