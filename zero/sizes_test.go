package zero

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

func paramsOf(dt dtype.DType) func() []*param.Param {
	return func() []*param.Param { return toy(dt) }
}

// deep is a model of layers blocks of a matrix, a norm and a bias each, large
// enough for padding to be small beside it.
func deep(layers int, dt dtype.DType) []*param.Param {
	var list []*param.Param
	for i := range layers {
		list = append(list,
			&param.Param{Name: fmt.Sprint(i, ".w"), Shape: []int{173, 211}, DType: dt, Block: i},
			&param.Param{Name: fmt.Sprint(i, ".norm"), Shape: []int{211}, DType: dt, Block: i, NoDecay: true},
			&param.Param{Name: fmt.Sprint(i, ".b"), Shape: []int{173}, DType: dt, Block: i, NoDecay: true})
	}
	return list
}

// pass goes through all blocks forward and backward and gives every gradient.
func (w *worker) pass(layers int) {
	for i := range layers {
		w.zero.Use(i)
		w.zero.Done(i)
	}
	for i := layers - 1; i >= 0; i-- {
		w.zero.Use(i)
		for j := 2; j >= 0; j-- {
			w.zero.Get(w.params[3*i+j])
			w.zero.Ready(w.params[3*i+j])
		}
		w.zero.Done(i)
	}
}

func within(t *testing.T, what string, got, want float64) {
	t.Helper()
	if !(math.Abs(got-want) <= 0.02*want) {
		t.Errorf("%s: %.0f, the formula gives %.0f", what, got, want)
	}
}

// With n ranks, psi elements, weights of w and gradients of g bytes, a rank sends
// g*psi+w*psi, A*g*psi+w*psi, or A*(g+2w)*psi times (n-1)/n, less what stage 3 keeps
// of a pass for the next; and holds w*psi + g*psi + (master+m+v)/n, w*psi +
// (4+master+m+v)/n, or (w+4+master+m+v)*psi/n, besides buffers for two buckets, and
// two blocks. What was sent is what the transport counts, and what the plan says.
func TestBytesAndMemoryEqualTheFormulas(t *testing.T) {
	const layers = 12
	for _, n := range []int{1, 2, 3, 4} {
		for stage := 1; stage <= 3; stage++ {
			for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
				for _, micro := range []int{1, 4} {
					t.Run(fmt.Sprintf("ranks=%d stage=%d %s accumulate=%d", n, stage, dt, micro), func(t *testing.T) {
						params := func() []*param.Param { return deep(layers, dt) }
						ranks(t, n, params, func(w *worker) { w.checkSizes(stage, layers, micro) }, "comm")
					})
				}
			}
		}
	}
}

func (w *worker) checkSizes(stage, layers, micro int) {
	o := Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 1, BucketCap: 200 << 10}}
	if !w.start(o) {
		return
	}
	z, plan := w.zero, w.zero.Plan()
	var s Stats
	var before int64
	for step := range 3 { // the first step gathers nothing before it
		for i := range micro {
			if !w.ok("StepBegin", z.StepBegin(i == micro-1)) {
				return
			}
			w.pass(layers)
			if !w.ok("Finish", z.Finish(w.ctx)) {
				return
			}
		}
		var err error
		if s, err = z.Stats(w.ctx); !w.ok("Stats", err) || !w.ok("comm", w.comm.Synchronize(w.ctx)) {
			return
		}
		after := w.transported()
		if got, want := after-before, s.Sent.Total(); step > 0 && math.Abs(float64(got-want)) > 0.001*float64(want) {
			w.t.Errorf("rank %d: the transport sent %d bytes, Stats says %d", w.rank, got, want)
		}
		before = after
		if !w.ok("Gather", z.Gather()) {
			return
		}
	}
	psi := 0.0
	for _, p := range w.params {
		psi += float64(p.Numel())
	}
	size := float64(w.params[0].DType.Size())
	n, a := float64(w.size), float64(micro)
	reduced, gathered := a*size, size
	switch stage {
	case 1:
		reduced = size
	case 3:
		// The last two blocks of a pass stay for the next one, but behind the optimizer.
		passes := a * 2
		gathered = size * (passes - (passes-1)*2/float64(layers))
	}
	share := (n - 1) / n
	within(w.t, "gradients sent", float64(s.Sent.ReduceScatter), reduced*psi*share)
	within(w.t, "weights sent", float64(s.Sent.AllGather), gathered*psi*share)
	if want := plan.Sent(micro); s.Sent != want {
		w.t.Errorf("rank %d: sent %+v, the plan says %+v", w.rank, s.Sent, want)
	}
	state := 8.0
	if size < 4 {
		state += 4
	}
	want := map[int]float64{1: 2*size + state/n, 2: size + (4+state)/n, 3: (size + 4 + state) / n}[stage] * psi
	got := plan.Memory()
	within(w.t, "memory", float64(got.Total()-got.Buffers), want)
	if moments := got.Moments; s.Memory != (Memory{got.Weights, got.Gradients, got.Masters, got.Buffers, 0, 0}) || moments == 0 {
		w.t.Errorf("rank %d: allocated %+v, the plan says %+v", w.rank, s.Memory, got)
	}
	largest := 0
	for i := range plan.Buckets {
		largest = max(largest, plan.Buckets[i].gradBytes())
	}
	if most := int64(2 * (largest + plan.largestBlock())); got.Buffers > most {
		w.t.Errorf("buffers take %d bytes, more than two buckets and two blocks, %d", got.Buffers, most)
	}
}

// transported is what comm's transport has sent; 0 elsewhere.
func (w *worker) transported() (n int64) {
	if g, ok := w.group.(*comm.Group); ok {
		for _, wire := range g.Stats().Wires {
			n += wire.Sent
		}
	}
	return n
}

// plannedMemory checks that this rank has allocated what was planned; where tied
// weights were not named, perhaps more for their buffers.
func (w *worker) plannedMemory(tiedNamed bool) {
	s, err := w.zero.Stats(w.ctx)
	want := w.zero.plan.Memory()
	want.Moments = 0
	if !tiedNamed {
		want.Buffers = max(want.Buffers, s.Memory.Buffers)
	}
	if err != nil || s.Memory != want {
		w.t.Errorf("rank %d: allocated %+v, the plan says %+v (%v)", w.rank, s.Memory, want, err)
	}
}
