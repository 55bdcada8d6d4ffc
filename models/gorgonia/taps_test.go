package gorgonia_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"testing"
	"time"

	G "gorgonia.org/gorgonia"
	gt "gorgonia.org/tensor"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/models/gorgonia"
)

// float is what Gorgonia computes in.
type float interface{ float32 | float64 }

// fill is n numbers of [-scale, scale), the same for one seed whatever T is, so far
// as it can hold them.
func fill[T float](n int, seed uint64, scale float64) []T {
	out := make([]T, n)
	for i := range out {
		x := (seed+1)*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9
		x ^= x >> 31
		x *= 0x94d049bb133111eb
		x ^= x >> 29
		out[i] = T((float64(x>>11)/(1<<52) - 1) * scale)
	}
	return out
}

func data[T float](v G.Value) []T { return v.Data().([]T) }

func gradOf[T float](t *testing.T, n *G.Node) []T {
	t.Helper()
	g, err := n.Grad()
	if err != nil {
		t.Fatal(err)
	}
	return data[T](g)
}

// net is an MLP with biases and a mean square loss, of one rank.
type net[T float] struct {
	graph  *G.ExprGraph
	x, y   *G.Node
	cost   *G.Node
	params G.Nodes
	grads  G.Nodes
	batch  int
}

var widths = []int{12, 32, 24, 24, 24, 5}

// newNet builds the net, with taps unless they are nil.
func newNet[T float](batch int, taps *gorgonia.Taps) *net[T] {
	var zero T
	dt := gt.Float32
	if _, double := any(zero).(float64); double {
		dt = gt.Float64
	}
	n := &net[T]{graph: G.NewGraph(), batch: batch}
	variable := func(name string, seed uint64, scale float64, shape ...int) *G.Node {
		size := 1
		for _, d := range shape {
			size *= d
		}
		w := G.NewTensor(n.graph, dt, len(shape), G.WithShape(shape...), G.WithName(name),
			G.WithValue(gt.New(gt.WithShape(shape...), gt.WithBacking(fill[T](size, seed, scale)))))
		n.params = append(n.params, w)
		if taps == nil {
			return w
		}
		return G.Must(taps.On(w))
	}
	last := len(widths) - 1
	n.x = G.NewMatrix(n.graph, dt, G.WithShape(batch, widths[0]), G.WithName("x"))
	n.y = G.NewMatrix(n.graph, dt, G.WithShape(batch, widths[last]), G.WithName("y"))
	h := n.x
	for i := range last {
		w := variable(fmt.Sprintf("w%d", i), uint64(10+i), math.Sqrt(3/float64(widths[i])), widths[i], widths[i+1])
		b := variable(fmt.Sprintf("b%d", i), uint64(20+i), 0.1, 1, widths[i+1])
		h = G.Must(G.BroadcastAdd(G.Must(G.Mul(h, w)), b, nil, []byte{0}))
		if i < last-1 {
			h = G.Must(G.Tanh(h))
		}
	}
	n.cost = G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(h, n.y))))))
	var err error
	if taps != nil {
		n.grads, err = taps.Grad(n.cost)
	} else {
		n.grads, err = G.Grad(n.cost, n.params...) // by one goroutine at a time: see deriving
	}
	if err != nil {
		panic(err)
	}
	return n
}

// feed gives the net its samples of the step: those of the whole batch from from on.
func (n *net[T]) feed(step, from, whole int) error {
	in, out := widths[0], widths[len(widths)-1]
	x, y := fill[T](whole*in, uint64(1000+step), 1), fill[T](whole*out, uint64(2000+step), 1)
	return errors.Join(
		G.Let(n.x, gt.New(gt.WithShape(n.batch, in), gt.WithBacking(x[from*in:(from+n.batch)*in:(from+n.batch)*in]))),
		G.Let(n.y, gt.New(gt.WithShape(n.batch, out), gt.WithBacking(y[from*out:(from+n.batch)*out:(from+n.batch)*out]))))
}

// machines are the ways to run a graph.
var machines = []struct {
	name    string
	options func(g *G.ExprGraph, in, params, out G.Nodes) ([]G.VMOpt, error)
}{
	{"tape", func(*G.ExprGraph, G.Nodes, G.Nodes, G.Nodes) ([]G.VMOpt, error) { return nil, nil }},
	{"compiled", func(g *G.ExprGraph, in, params, out G.Nodes) ([]G.VMOpt, error) {
		prog, at, err := G.CompileFunction(g, append(in, params...), out)
		return []G.VMOpt{G.WithPrecompiled(prog, at)}, err
	}},
	{"derivatives", func(g *G.ExprGraph, in, params, out G.Nodes) ([]G.VMOpt, error) {
		outputs := G.Nodes{out[0]} // not all that Grad has returned
		for _, p := range params {
			outputs = append(outputs, p.Deriv())
		}
		prog, at, err := G.CompileFunction(g, append(in, params...), outputs)
		return []G.VMOpt{G.WithPrecompiled(prog, at)}, err
	}},
	{"dual", func(_ *G.ExprGraph, _, params, _ G.Nodes) ([]G.VMOpt, error) {
		return []G.VMOpt{G.BindDualValues(params...)}, nil
	}},
	{"watched", func(*G.ExprGraph, G.Nodes, G.Nodes, G.Nodes) ([]G.VMOpt, error) {
		return []G.VMOpt{G.TraceExec(), G.WithNaNWatch()}, nil
	}},
}

func (n *net[T]) options(kind int) ([]G.VMOpt, error) {
	return machines[kind].options(n.graph, G.Nodes{n.x, n.y}, n.params, append(G.Nodes{n.cost}, n.grads...))
}

// replica is a rank of a test: its group, and taps on a graph.
type replica struct {
	*comm.Group
	t     *testing.T
	ctx   context.Context
	taps  gorgonia.Taps
	model *ddp.Model
}

// tapped is On for a graph that is being built.
func (r *replica) tapped(w *G.Node) *G.Node { return G.Must(r.taps.On(w)) }

// join makes the rank's reducer, once its graph is built.
func (r *replica) join(o ddp.Options) error {
	vars, err := r.taps.Vars()
	if err != nil {
		return err
	}
	r.model, err = ddp.Wrap(r.ctx, r.Group, vars, o)
	return err
}

// ranks runs do on n ranks at once. An error of one fails the test and its group.
func ranks(t *testing.T, n int, do func(r *replica) error) {
	t.Helper()
	for r, err := range outcomes(t, n, do) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// outcomes is ranks with the errors handed out.
func outcomes(t *testing.T, n int, do func(r *replica) error) []error {
	t.Helper()
	groups, err := comm.Local(n, comm.Options{Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() {
			r := &replica{Group: g, t: t, ctx: ctx}
			if errs[i] = do(r); errs[i] != nil {
				g.Abort(errs[i])
			}
			if r.model != nil {
				errs[i] = errors.Join(errs[i], r.model.Close())
			}
			g.Close()
		})
	}
	wg.Wait()
	return errs
}

// apart is the distance of got from want, over the norm of want.
func apart[T float](got, want []T) float64 {
	var d, n float64
	for i := range want {
		e := float64(got[i]) - float64(want[i])
		d += e * e
		n += float64(want[i]) * float64(want[i])
	}
	return math.Sqrt(d) / max(math.Sqrt(n), 1e-30)
}

func clone[T float](list G.Nodes) [][]T {
	out := make([][]T, len(list))
	for i, n := range list {
		out[i] = append([]T{}, data[T](n.Value())...)
	}
	return out
}

const steps = 5

// trained is the parameters after training, and the gradients of the last step.
type trained[T float] struct{ params, grads [][]T }

func (n *net[T]) result(t *testing.T) (r trained[T]) {
	r.params = clone[T](n.params)
	for _, p := range n.params {
		r.grads = append(r.grads, append([]T{}, gradOf[T](t, p)...))
	}
	return r
}

// alone trains on the whole batch in one process, without a tap anywhere.
func alone[T float](t *testing.T, whole int) trained[T] {
	n := newNet[T](whole, nil)
	vm := G.NewTapeMachine(n.graph)
	defer vm.Close()
	solver := G.NewVanillaSolver(G.WithLearnRate(0.1))
	var last trained[T]
	for s := range steps {
		if err := n.feed(s, 0, whole); err != nil {
			t.Fatal(err)
		}
		if err := vm.RunAll(); err != nil {
			t.Fatal(err)
		}
		last = n.result(t)
		if err := solver.Step(G.NodesToValueGrads(n.params)); err != nil {
			t.Fatal(err)
		}
		vm.Reset()
	}
	last.params = clone[T](n.params)
	return last
}

// together trains on the rank's part of the whole batch, split into micro runs.
func together[T float](r *replica, kind, whole, micro int, o ddp.Options) (last trained[T], err error) {
	batch := whole / r.Size() / micro
	n := newNet[T](batch, &r.taps)
	if r.Rank() > 0 { // rank 0's weights count
		for _, p := range n.params {
			clear(data[T](p.Value()))
		}
	}
	if err := r.join(o); err != nil {
		return last, err
	}
	options, err := n.options(kind)
	if err != nil {
		return last, err
	}
	vm := G.NewTapeMachine(n.graph, options...)
	defer vm.Close()
	solver := G.NewVanillaSolver(G.WithLearnRate(0.1 / float64(micro))) // of a sum of means
	for s := range steps {
		for m := range micro {
			if err := n.feed(s, (m*r.Size()+r.Rank())*batch, whole); err != nil {
				return last, err
			}
			run := r.taps.Accumulate
			if m == micro-1 {
				run = r.taps.Run
			}
			if err := run(r.ctx, vm, r.model); err != nil {
				return last, err
			}
			if m < micro-1 {
				vm.Reset()
			}
		}
		last = n.result(r.t)
		if err := solver.Step(G.NodesToValueGrads(r.taps.Nodes())); err != nil {
			return last, err
		}
		vm.Reset()
		if err := r.model.CheckReplicas(r.ctx); err != nil {
			return last, err
		}
	}
	last.params = clone[T](n.params)
	return last, nil
}

// Training on parts of a batch is training on the whole of it: the parameters agree
// up to rounding, the gradients too, which a factor would show in even where a solver
// hides it, and all ranks hold the same bits.
func TestRanksTrainAsOneProcessDoes(t *testing.T) {
	t.Run("float32", func(t *testing.T) { agree[float32](t, 1e-6) })
	t.Run("float64", func(t *testing.T) { agree[float64](t, 1e-14) })
}

func agree[T float](t *testing.T, tolerance float64) {
	const whole = 24
	want := alone[T](t, whole)
	for kind, m := range machines {
		for _, n := range []int{1, 2, 3, 4} {
			t.Run(fmt.Sprintf("%s/%d", m.name, n), func(t *testing.T) {
				results := make([]trained[T], n)
				ranks(t, n, func(r *replica) (err error) {
					o := ddp.Options{Op: comm.Avg, PlanOptions: ddp.PlanOptions{BucketCap: 2000, FirstBucket: 600}}
					results[r.Rank()], err = together[T](r, kind, whole, 1, o)
					return err
				})
				for i := range want.params {
					for r := range results {
						if got := apart(results[r].params[i], want.params[i]); !(got <= tolerance) {
							t.Errorf("rank %d: parameter %d is %.2g apart from that of one process, want at most %g", r, i, got, tolerance)
						}
						// Gradients are differences of what the parameters are, and less exact.
						if got := apart(results[r].grads[i], want.grads[i]); !(got <= 20*tolerance) {
							t.Errorf("rank %d: gradient %d is %.2g apart from that of one process, want at most %g", r, i, got, 20*tolerance)
						}
						for j, v := range results[r].params[i] {
							if v != results[0].params[i][j] {
								t.Fatalf("rank %d: element %d of parameter %d is %v, on rank 0 %v", r, j, i, v, results[0].params[i][j])
							}
						}
					}
				}
			})
		}
	}
}
