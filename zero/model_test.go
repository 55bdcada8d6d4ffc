package zero

import (
	"context"
	"math"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// trainer is what a model and a training loop see: a Zero, or a replica with ddp.
type trainer interface {
	param.GradSink
	param.Weights
	StepBegin(sync bool) error
	Finish(ctx context.Context) error
}

// toy is a model of odd sizes. embed is tied: its block is used at both ends. Block 1
// is a module that is used twice, around others; c.w is written twice in its own block.
// There are a frozen parameter, a frozen layer, a parameter without elements, and
// some of fewer elements than there are ranks.
func toy(dt dtype.DType) []*param.Param {
	return []*param.Param{
		{Name: "embed", Shape: []int{7, 9}, DType: dt},
		{Name: "a.w", Shape: []int{33}, DType: dt, Block: 1},
		{Name: "a.b", Shape: []int{3}, DType: dt, Block: 1, NoDecay: true},
		{Name: "a.none", Shape: []int{0, 4}, DType: dt, Block: 1},
		{Name: "frozen", Shape: []int{130}, DType: dt, Block: 2, Frozen: true},
		{Name: "b.w", Shape: []int{40, 13}, DType: dt, Block: 2},
		{Name: "b.one", Shape: []int{1}, DType: dt, Block: 2},
		{Name: "c.w", Shape: []int{300}, DType: dt, Block: 3},
		{Name: "c.b", Shape: []int{5}, DType: dt, Block: 3, NoDecay: true},
		{Name: "still.w", Shape: []int{11, 5}, DType: dt, Block: 4, Frozen: true},
		{Name: "still.b", Shape: []int{11}, DType: dt, Block: 4, Frozen: true, NoDecay: true},
	}
}

// toyBlocks is the number of toy's blocks, toyTied the parameters that are written
// long before they are Ready.
const toyBlocks = 5

var toyTied = []string{"embed", "a.w", "a.b", "a.none"}

func toyF32() []*param.Param { return toy(dtype.F32) }

// initial is the weight of element e of a parameter.
func initial(p *param.Param, e int) float32 {
	return float32(math.Sin(float64(e)*0.7+float64(len(p.Name))) / 2)
}

func initials(p *param.Param) []float32 {
	values := make([]float32, p.Numel())
	for e := range values {
		values[e] = initial(p, e)
	}
	return values
}

// toyModel runs the model's passes on a rank. What its blocks compute forward is the
// mean of their weights, which every gradient depends on.
type toyModel struct {
	params []*param.Param
	do     func(name string, f func()) // enqueues on the compute stream
	see    func(tensor.Tensor) tensor.Tensor
	means  [toyBlocks + 1]float64                       // by block; the last is the tied head's
	value  func(sample, e int, w, mean float64) float64 // nil: gradient
	order  []int                                        // the parameters of the backward pass; nil: reversed
}

// samples is the global batch of a step.
const samples = 48

// cosines are those of whole numbers. The race detector looks at every step of
// math.Cos, in which the tests of this package would spend most of their time.
var cosines = func() (all [1 << 14]float64) {
	for i := range all {
		all[i] = math.Cos(float64(i))
	}
	return all
}()

func gradient(sample, e int, w, mean float64) float64 {
	return (w+0.1*mean-cosines[sample+3*e])/samples + 0.001
}

// micro makes a micro-step on samples [from, to).
func (m *toyModel) micro(t trainer, from, to int) {
	for _, block := range []int{0, 1, 2, 1, 3, 4} {
		t.Use(block)
		m.forward(t, block, block)
		t.Done(block)
	}
	t.Use(0)
	m.forward(t, 0, toyBlocks)
	m.backward(t, m.params[0], from, to, true) // the head's part
	t.Done(0)
	t.Use(4) // nothing but what lies below needs it
	m.forward(t, 4, 4)
	t.Done(4)
	middle := (from + to) / 2
	t.Use(1) // the later of its uses
	for _, p := range m.params {
		if p.Block == 1 {
			m.backward(t, p, middle, to, false)
		}
	}
	t.Done(1)
	block := -1
	for k := range m.params {
		p := m.params[len(m.params)-1-k]
		if m.order != nil {
			p = m.params[m.order[k]]
		}
		if p.Frozen {
			continue
		}
		if p.Block != block {
			if block >= 0 {
				t.Done(block)
			}
			block = p.Block
			t.Use(block)
		}
		switch {
		case p.Block == 1:
			m.backward(t, p, from, middle, false)
		case p.Name == "c.w":
			m.backward(t, p, from, middle, false)
			m.backward(t, p, middle, to, false)
		default:
			m.backward(t, p, from, to, false)
		}
		t.Ready(p)
	}
	t.Done(block)
}

func (m *toyModel) forward(t trainer, block, to int) {
	var weights []tensor.Tensor
	for _, p := range m.params {
		if p.Block == block {
			weights = append(weights, m.see(t.Weight(p)))
		}
	}
	m.do("forward", func() {
		sum, n := 0.0, 0
		for _, w := range weights {
			load := loader(w)
			for e := range w.Numel() {
				sum += load(e)
			}
			n += w.Numel()
		}
		m.means[to] = sum / float64(n)
	})
}

func (m *toyModel) backward(t trainer, p *param.Param, from, to int, head bool) {
	w := m.see(t.Weight(p))
	g, add := t.Get(p)
	g = m.see(g)
	value := m.value
	if value == nil {
		value = gradient
	}
	m.do("backward "+p.Name, func() {
		mean := m.means[p.Block]
		if head {
			mean = m.means[toyBlocks]
		}
		weight, load, store := loader(w), loader(g), storer(g)
		for e := range g.Numel() {
			sum := 0.0
			if add {
				sum = load(e)
			}
			for s := from; s < to; s++ {
				sum += value(s, e, weight(e), mean)
			}
			store(e, sum)
		}
	})
}

// step makes the micro-steps of a step: rank's part of the samples.
func (m *toyModel) step(ctx context.Context, t trainer, rank, ranks, accumulate int) error {
	n := samples / ranks / accumulate
	for micro := range accumulate {
		if err := t.StepBegin(micro == accumulate-1); err != nil {
			return err
		}
		from := (rank*accumulate + micro) * n
		m.micro(t, from, from+n)
		if err := t.Finish(ctx); err != nil {
			return err
		}
	}
	return nil
}

// adamW steps w[n] with gradient g, scaled by coef, in float64 rounded to f32. A
// coef that is no number changes nothing.
func adamW(w, m, v []float32, g func(i int) float64, coef float64, step int, decay bool) {
	const lr, b1, b2, eps = 0.01, 0.9, 0.99, 1e-6
	if math.IsNaN(coef) {
		return
	}
	left1, left2 := 1-math.Pow(b1, float64(step)), 1-math.Pow(b2, float64(step))
	for i := range w {
		x := g(i) * coef
		m[i] = float32(b1*float64(m[i]) + (1-b1)*x)
		v[i] = float32(b2*float64(v[i]) + (1-b2)*x*x)
		mhat := float64(m[i]) / left1
		vhat := float64(v[i]) / left2
		next := float64(w[i])
		if decay {
			next -= lr * 0.1 * next
		}
		w[i] = float32(next - lr*mhat/(math.Sqrt(vhat)+eps))
	}
}

// clip is the coefficient for a squared norm, rounded so that the order of the
// norm's sum does not show.
func clip(squares float64) float64 {
	if math.IsNaN(squares) || math.IsInf(squares, 0) {
		return math.NaN()
	}
	return float64(float32(min(1, 0.5/math.Sqrt(squares))))
}

// zeroRun is a training run of one rank with a Zero.
type zeroRun struct {
	w          *worker
	model      *toyModel
	accumulate int
	m, v       [][]float32
	squares    tensor.Tensor // f64[1]
	norms      []float64
	applied    int
	coef       func(squares float64) float64 // nil: clip
}

func (w *worker) train(accumulate int) *zeroRun {
	r := &zeroRun{w: w, accumulate: accumulate, squares: w.alloc(dtype.F64, 1)}
	r.model = &toyModel{params: w.params, see: w.see, do: func(name string, f func()) {
		w.compute.Do(name, func() error { f(); return nil })
	}}
	for _, s := range w.zero.Shards() {
		r.m, r.v = append(r.m, make([]float32, s.To-s.From)), append(r.v, make([]float32, s.To-s.From))
	}
	return r
}

// load gives the parameters their initial values.
func (r *zeroRun) load() bool {
	for _, p := range r.w.params {
		if !r.w.ok("SetWeight", r.w.zero.SetWeight(r.w.ctx, p, 0, initials(p))) {
			return false
		}
	}
	return r.w.ok("Gather", r.w.zero.Gather())
}

// enqueue enqueues a step, the optimizer included.
func (r *zeroRun) enqueue() bool {
	return r.enqueueMicro(func() error { return r.model.step(r.w.ctx, r.w.zero, r.w.rank, r.w.size, r.accumulate) })
}

// enqueueMicro enqueues a step of the micro-steps that micro makes.
func (r *zeroRun) enqueueMicro(micro func() error) bool {
	w, z := r.w, r.w.zero
	if !w.ok("step", micro()) {
		return false
	}
	squares := w.see(r.squares).F64()
	w.compute.Do("norm", func() error {
		squares[0] = 0
		for _, s := range z.Shards() {
			load := loader(w.see(s.Grad))
			for i := range s.To - s.From {
				squares[0] += load(i) * load(i)
			}
		}
		return nil
	})
	z.AllReduce(r.squares)
	step, coef := r.applied+1, r.coef
	if coef == nil {
		coef = clip
	}
	w.compute.Do("adamw", func() error {
		r.norms = append(r.norms, math.Sqrt(squares[0]))
		for i, s := range z.Shards() {
			adamW(w.see(s.Master).F32(), r.m[i], r.v[i], loader(w.see(s.Grad)), coef(squares[0]), step, s.Decay)
		}
		return nil
	})
	r.applied++
	return true
}

// steps makes n steps, without a skip.
func (r *zeroRun) steps(n int) bool {
	for range n {
		if !r.enqueue() || !r.w.ok("Gather", r.w.zero.Gather()) {
			return false
		}
	}
	return r.w.synchronize()
}

// weights is the whole of each parameter as the model sees it.
func (r *zeroRun) weights() map[string][]float32 {
	all := map[string][]float32{}
	for block := range toyBlocks {
		r.w.zero.Use(block)
		for _, p := range r.w.params {
			if p.Block == block {
				t := r.w.see(r.w.zero.Weight(p))
				r.w.compute.Do("read", func() error {
					load := loader(t)
					values := make([]float32, t.Numel())
					for e := range values {
						values[e] = float32(load(e))
					}
					all[p.Name] = values
					return nil
				})
			}
		}
		r.w.zero.Done(block)
	}
	r.w.synchronize()
	return all
}

// masters reads what this rank holds into all.
func (w *worker) masters(all map[string][]float32) {
	for _, p := range w.params {
		h := w.zero.Held(p)
		w.ok("ReadWeight", w.zero.ReadWeight(w.ctx, p, h.From, all[p.Name][h.From:h.To]))
	}
}

// f64Run trains on the whole batch in float64, on one rank, without streams.
type f64Run struct {
	weights map[*param.Param][]float64
	grads   map[*param.Param][]float64
	written map[*param.Param]bool
}

func (r *f64Run) Use(int)  {}
func (r *f64Run) Done(int) {}
func (r *f64Run) Weight(p *param.Param) tensor.Tensor {
	return tensor.New(device.Of(r.weights[p]), dtype.F64, p.Shape...)
}
func (r *f64Run) Get(p *param.Param) (tensor.Tensor, bool) {
	add := r.written[p]
	r.written[p] = true
	return tensor.New(device.Of(r.grads[p]), dtype.F64, p.Shape...), add
}
func (r *f64Run) Ready(*param.Param)               {}
func (r *f64Run) StepBegin(bool) error             { clear(r.written); return nil }
func (r *f64Run) Finish(ctx context.Context) error { return nil }

// reference is the weights and norms after steps on the whole batch.
func reference(ctx context.Context, params []*param.Param, steps int) (weights map[string][]float64, norms []float64) {
	r := &f64Run{map[*param.Param][]float64{}, map[*param.Param][]float64{}, map[*param.Param]bool{}}
	moments := map[*param.Param][2][]float64{}
	for _, p := range params {
		r.weights[p], r.grads[p] = make([]float64, p.Numel()), make([]float64, p.Numel())
		moments[p] = [2][]float64{make([]float64, p.Numel()), make([]float64, p.Numel())}
		for e, x := range initials(p) {
			r.weights[p][e] = float64(x)
		}
	}
	m := &toyModel{params: params, see: identity, do: func(_ string, f func()) { f() }}
	for step := 1; step <= steps; step++ {
		m.step(ctx, r, 0, 1, 1)
		squares := 0.0
		for _, p := range params {
			for _, g := range r.grads[p] {
				squares += g * g
			}
		}
		norms = append(norms, math.Sqrt(squares))
		coef := min(1, 0.5/math.Sqrt(squares))
		for _, p := range params {
			if p.Frozen {
				continue
			}
			for i, g := range r.grads[p] {
				w, m, v := &r.weights[p][i], &moments[p][0][i], &moments[p][1][i]
				*m = 0.9**m + 0.1*g*coef
				*v = 0.99**v + 0.01*g*g*coef*coef
				if !p.NoDecay {
					*w -= 0.01 * 0.1 * *w
				}
				*w -= 0.01 * (*m / (1 - math.Pow(0.9, float64(step)))) / (math.Sqrt(*v/(1-math.Pow(0.99, float64(step)))) + 1e-6)
			}
		}
	}
	weights = map[string][]float64{}
	for _, p := range params {
		weights[p.Name] = r.weights[p]
	}
	return weights, norms
}

// identity sees what lies in host memory.
func identity(t tensor.Tensor) tensor.Tensor { return t }
