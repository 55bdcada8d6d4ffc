package zero

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

func none() []*param.Param { return nil }

func (w *worker) wrapped(vars []param.Var, o Options) *Model {
	m, err := Wrap(w.ctx, w.group, vars, o)
	if !w.ok("Wrap", err) {
		return nil
	}
	w.made = append(w.made, m)
	return m
}

// A step of gradient descent on wrapped slices takes the sum, or the mean, over all
// ranks and micro-steps: closed forms in small integers, at any number of ranks, more
// than a variable has elements among them.
func TestWrappedSlicesFollowTheReducedGradients(t *testing.T) {
	for _, n := range []int{1, 3, 4} {
		for _, stage := range []int{1, 2} {
			for _, o := range []Options{{}, {Op: comm.Avg}, {PlanOptions: PlanOptions{FirstBucket: 8, BucketCap: 8}}, {PlanOptions: PlanOptions{ReduceDType: dtype.BF16}}} {
				o.Stage = stage
				t.Run(fmt.Sprintf("ranks=%d stage=%d op=%s bucket=%d reduce=%s", n, stage, o.Op, o.BucketCap, o.ReduceDType), func(t *testing.T) {
					ranks(t, n, none, func(w *worker) { wrapTest(w, o) }, "hub", "comm")
				})
			}
		}
	}
}

func wrapTest(w *worker, o Options) {
	a, table, b := []float32{1, 2, 3, 4, 5, 6, 7}, []float32{8, 9}, []float32{10}
	da, db := make([]float32, len(a)), make([]float32, len(b))
	if w.rank > 0 { // rank 0's count
		clear(a)
		clear(table)
		clear(b)
	}
	m := w.wrapped([]param.Var{param.Slice("a", a, da), param.Slice("table", table, nil), param.Slice("b", b, db)}, o)
	if m == nil {
		return
	}
	if !slices.Equal(a, []float32{1, 2, 3, 4, 5, 6, 7}) || !slices.Equal(table, []float32{8, 9}) || !slices.Equal(b, []float32{10}) {
		w.t.Errorf("rank %d: after Wrap the weights are %v, %v, %v, not rank 0's", w.rank, a, table, b)
	}
	scale := float32(1)
	if o.Op == comm.Avg {
		scale = 1 / float32(w.size)
	}
	want := slices.Clone(a)
	wantB := b[0]
	for range 2 {
		const micro = 2
		for k := range micro {
			if !w.ok("StepBegin", m.StepBegin(k == micro-1)) {
				return
			}
			for i := range da {
				da[i] = float32(i - w.rank + k)
			}
			db[0] = float32(w.rank - 3)
			m.Ready(2)
			m.Ready(0)
			if !w.ok("Finish", m.Finish(w.ctx)) {
				return
			}
		}
		var squares float64
		var gradA [7]float32
		var gradB float32
		for r := range w.size {
			for k := range micro {
				for i := range gradA {
					gradA[i] += float32(i - r + k)
				}
				gradB += float32(r - 3)
			}
		}
		for i := range want {
			want[i] -= 2 * (scale * gradA[i])
			squares += float64(scale*gradA[i]) * float64(scale*gradA[i])
		}
		wantB -= 2 * (scale * gradB)
		squares += float64(scale*gradB) * float64(scale*gradB)
		norm, err := m.Norm(w.ctx)
		if !w.ok("Norm", err) {
			return
		}
		if exact := math.Sqrt(squares); !(math.Abs(norm-exact) <= 1e-12*exact) {
			w.t.Errorf("rank %d: the norm is %v, want %v", w.rank, norm, exact)
		}
		for _, s := range m.Shards() {
			for i, x := range s.Grad.F32() {
				s.Master.F32()[i] -= 2 * x
			}
		}
		if !w.ok("Gather", m.Gather(w.ctx)) {
			return
		}
		if o.Op == comm.Avg && w.size == 3 || o.ReduceDType == dtype.BF16 && o.Op == comm.Avg {
			continue // the sums are divided with rounding; TestWrappedTrainingIsThatOfOneProcess compares such
		}
		if !slices.Equal(a, want) || b[0] != wantB || !slices.Equal(table, []float32{8, 9}) {
			w.t.Errorf("rank %d: weights are %v, %v and %v, want %v, [8 9] and %v", w.rank, a, table, b, want, wantB)
		}
	}
}

// Training with a sharded optimizer that has moments is training by one process, whose
// only difference is the order of sums; replicas agree bit by bit.
func TestWrappedTrainingIsThatOfOneProcess(t *testing.T) {
	const batch, features, steps = 12, 7, 20
	sample := func(s, i int) float32 { return float32(math.Sin(float64(1 + s*features + i))) }
	train := func(w *worker, stage int) []float32 {
		weight, grad := make([]float32, features), make([]float32, features)
		m := w.wrapped([]param.Var{param.Slice("weight", weight, grad)}, Options{PlanOptions: PlanOptions{Stage: stage}})
		if m == nil {
			return nil
		}
		moments := make([][]float32, len(m.Shards()))
		for range steps {
			if !w.ok("StepBegin", m.StepBegin(true)) {
				return nil
			}
			clear(grad)
			for s := w.rank; s < batch; s += w.size {
				off := -sample(s, 99)
				for i := range features {
					off += weight[i] * sample(s, i)
				}
				for i := range features {
					grad[i] += off * sample(s, i) / batch
				}
			}
			m.Ready(0)
			if !w.ok("Finish", m.Finish(w.ctx)) {
				return nil
			}
			for k, s := range m.Shards() {
				if moments[k] == nil {
					moments[k] = make([]float32, s.To-s.From)
				}
				for i, x := range s.Grad.F32() {
					moments[k][i] = 0.5*moments[k][i] + x
					s.Master.F32()[i] -= 0.25 * moments[k][i]
				}
			}
			if !w.ok("Gather", m.Gather(w.ctx)) {
				return nil
			}
		}
		return weight
	}
	local := engines[2]
	for _, stage := range []int{1, 2} {
		var alone []float32
		run(t, local.name, local.group(t, 1), none, func(w *worker) { alone = train(w, stage) })
		for _, n := range []int{2, 3, 4} {
			results := make([][]float32, n)
			run(t, local.name, local.group(t, n), none, func(w *worker) { results[w.rank] = train(w, stage) })
			for r, got := range results {
				if !slices.Equal(got, results[0]) {
					t.Errorf("stage %d, %d ranks: rank %d has %v, rank 0 %v", stage, n, r, got, results[0])
				}
				for i := range got {
					if !(math.Abs(float64(got[i]-alone[i])) <= 1e-6) {
						t.Errorf("stage %d, %d ranks: rank %d has weights %v, one process %v", stage, n, r, got, alone)
						break
					}
				}
			}
		}
	}
}

func TestWrapRefusesByName(t *testing.T) {
	ones := func() []float32 { return make([]float32, 1) }
	two := Options{PlanOptions: PlanOptions{Stage: 2}}
	for _, c := range []struct {
		vars []param.Var
		o    Options
		want string
	}{
		{[]param.Var{param.Slice("w", ones(), ones())}, Options{PlanOptions: PlanOptions{Stage: 3}}, "take stage 1 or 2"},
		{[]param.Var{param.Slice("w", ones(), ones())}, Options{}, "Stage is 0"},
		{[]param.Var{param.Slice("w", ones(), ones())}, Options{PlanOptions: PlanOptions{Stage: 1, GradDType: dtype.BF16}}, "ReduceDType says what travels"},
		{[]param.Var{param.Slice("w", make([]float64, 1), make([]float64, 1))}, two, "w has weight f64[1] and gradient f64[1]: Wrap takes float32"},
		{[]param.Var{param.Slice("w", ones(), nil)}, two, "no parameter is trainable"},
		{[]param.Var{param.Slice("w", ones(), make([]float32, 3))}, two, "as many elements"},
	} {
		run(t, engines[2].name, engines[2].group(t, 2), none, func(w *worker) {
			_, err := Wrap(w.ctx, w.group, c.vars, c.o)
			w.wants(err, c.want)
			w.meet()
		})
	}
}

// What a program does wrong ends the step on every rank, with the variable's name.
func TestWrappedStepsFailByName(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(m *Model)
		want string
	}{
		"frozen":    {func(m *Model) { m.Ready(1) }, "Ready of table, which is frozen"},
		"twice":     {func(m *Model) { m.Ready(0); m.Ready(0) }, "a"},
		"forgotten": {func(m *Model) {}, "no gradient for a"},
		"broadcast": {func(m *Model) { m.Broadcast(t.Context(), 0) }, "Broadcast within a micro-step"},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 2, none, func(w *worker) {
				m := w.wrapped([]param.Var{param.Slice("a", make([]float32, 4), make([]float32, 4)), param.Slice("table", make([]float32, 2), nil)},
					Options{PlanOptions: PlanOptions{Stage: 2}})
				if m == nil || !w.ok("StepBegin", m.StepBegin(true)) {
					return
				}
				w.meet()
				c.do(m)
				w.wants(m.Finish(w.ctx), c.want)
				w.wants(m.Err(), c.want)
			}, "hub", "comm")
		})
	}
}

// A rank that cannot wrap its variables does not leave the others waiting.
func TestARankThatCannotWrapEndsTheGroup(t *testing.T) {
	run(t, engines[2].name, engines[2].group(t, 2), none, func(w *worker) {
		vars := []param.Var{param.Slice("w", make([]float32, 1), make([]float32, 1))}
		if w.rank == 1 {
			vars[0].Name = ""
		}
		_, err := Wrap(w.ctx, w.group, vars, Options{PlanOptions: PlanOptions{Stage: 1}})
		w.wants(err, "variable 0 of 1 has no name")
	})
}
