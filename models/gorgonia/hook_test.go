package gorgonia_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	G "gorgonia.org/gorgonia"
	gt "gorgonia.org/tensor"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/models/gorgonia"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// watched is a reducer, and the group that it reduces by, which write down what they
// are asked for.
type watched struct {
	*ddp.Model
	log []string
}

func (w *watched) Ready(i int) {
	w.log = append(w.log, "ready")
	w.Model.Ready(i)
}

type watchedGroup struct {
	*comm.Group
	by *watched
}

func (g watchedGroup) AllReduce(s device.Stream, b device.Buffer, dt dtype.DType, op comm.Op) *comm.Work {
	g.by.log = append(g.by.log, "reduce")
	return g.Group.AllReduce(s, b, dt, op)
}

// The first bucket leaves before half of the instructions of the backward pass have
// run, and before the hooks of later layers: its reduction is enqueued by the hook
// that completes it.
func TestTheFirstBucketLeavesEarly(t *testing.T) {
	for _, kind := range []int{0, 1} {
		t.Run(machines[kind].name, func(t *testing.T) {
			ranks(t, 2, func(r *replica) error {
				n := newNet[float32](8, &r.taps)
				vars, err := r.taps.Vars()
				if err != nil {
					return err
				}
				w := &watched{}
				w.Model, err = ddp.Wrap(r.ctx, watchedGroup{r.Group, w}, vars, ddp.Options{
					Op: comm.Avg, PlanOptions: ddp.PlanOptions{BucketCap: 2000, FirstBucket: 400},
				})
				if err != nil {
					return err
				}
				r.model = w.Model
				options, err := n.options(kind)
				if err != nil {
					return err
				}
				vm := G.NewTapeMachine(n.graph, options...)
				defer vm.Close()
				for s := range 2 { // the second in the order of the first
					if err := n.feed(s, 8*r.Rank(), 16); err != nil {
						return err
					}
					w.log = nil
					if err := r.taps.Run(r.ctx, vm, w); err != nil {
						return err
					}
					vm.Reset()
				}
				plan := w.DDP().Plan()
				first := plan.Buckets[0]
				if len(plan.Buckets) < 3 {
					return fmt.Errorf("the plan has %d buckets: too few to tell anything", len(plan.Buckets))
				}
				begin, hooks, end := program(vm.Prog())
				last := 0
				for _, p := range first.Params {
					last = max(last, hooks[p.Name])
				}
				if last <= begin || 2*(last-begin) >= end-begin {
					return fmt.Errorf("the first bucket is complete at instruction %d; the backward pass runs from %d to %d", last, begin, end)
				}
				t.Logf("rank %d: the first bucket leaves at instruction %d of the backward pass's %d to %d", r.Rank(), last, begin, end)
				if at := slices.Index(w.log, "reduce"); at != len(first.Params) {
					return fmt.Errorf("the first reduction is enqueued after %d hooks, its bucket has %d: %v", at, len(first.Params), w.log)
				}
				return nil
			})
		})
	}
}

// program is where in p the backward pass begins, where each hook
// is, and where the last of them is, all as indices of instructions.
func program(p fmt.Stringer) (begin int, hooks map[string]int, end int) {
	text, _, _ := strings.Cut(p.String(), "\nArgs:")
	hooks = map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\d+)\t(.*)$`).FindAllStringSubmatch(text, -1) {
		var at int
		fmt.Sscan(m[1], &at)
		if strings.HasPrefix(m[2], "Σ[0 1]") {
			begin = at // the sum of the squares: the loss
		}
		if name, is := strings.CutPrefix(m[2], "hook on the gradient of "); is {
			name, _, _ = strings.Cut(name, "\t")
			hooks[name], end = at, max(end, at)
		}
	}
	return begin, hooks, end
}

// square is an n by n matrix of a graph.
func square(g *G.ExprGraph, name string, n int, seed uint64) *G.Node {
	return G.NewMatrix(g, gt.Float32, G.WithShape(n, n), G.WithName(name),
		G.WithValue(gt.New(gt.WithShape(n, n), gt.WithBacking(fill[float32](n*n, seed, 1)))))
}

// solo runs a graph three times on one rank, by each kind of machine: build makes the
// graph of a cost, and check looks at what a run left.
func solo(t *testing.T, kinds []int, build func(r *replica, g *G.ExprGraph) (cost *G.Node), check func(r *replica, again int) error) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(machines[kind].name, func(t *testing.T) {
			ranks(t, 1, func(r *replica) error {
				g := G.NewGraph()
				cost := build(r, g)
				grads, err := r.taps.Grad(cost)
				if err != nil {
					return err
				}
				if err := r.join(ddp.Options{Op: comm.Avg}); err != nil {
					return err
				}
				options, err := machines[kind].options(g, g.Inputs(), r.taps.Nodes(), append(G.Nodes{cost}, grads...))
				if err != nil {
					return err
				}
				vm := G.NewTapeMachine(g, options...)
				defer vm.Close()
				for again := range 3 {
					if err := r.taps.Run(r.ctx, vm, r.model); err != nil {
						return err
					}
					if err := check(r, again); err != nil {
						return err
					}
					vm.Reset()
				}
				return nil
			})
		})
	}
}

// The sum of a bias on the left and something else is what the tape writes over the
// bias: of b + relu(x w) nothing reads b later. It must be over the tap's copy.
func TestTheTapeNeverWritesOverAParameter(t *testing.T) {
	want := map[string][]float32{}
	var kept [][]float32
	solo(t, []int{0, 1, 2}, func(r *replica, g *G.ExprGraph) *G.Node {
		x, w, b := square(g, "x", 8, 1), square(g, "w", 8, 2), square(g, "b", 8, 3)
		for _, n := range []*G.Node{w, b} {
			want[n.Name()] = slices.Clone(data[float32](n.Value()))
		}
		left := r.tapped(b)
		z := G.Must(G.Rectify(G.Must(G.Mul(x, r.tapped(w)))))
		return G.Must(G.Mean(G.Must(G.Square(G.Must(G.Add(left, z))))))
	}, func(r *replica, again int) error {
		for i, n := range r.taps.Nodes() {
			if !slices.Equal(data[float32](n.Value()), want[n.Name()]) {
				return fmt.Errorf("run %d: %s was written over", again, n.Name())
			}
			g := slices.Clone(gradOf[float32](t, n))
			if again == 0 {
				kept = append(kept[:i], g)
			} else if !slices.Equal(g, kept[i]) {
				return fmt.Errorf("run %d: the gradient of %s is not that of the first run", again, n.Name())
			}
		}
		return nil
	})
}

// What the tape does to the shape of a value stays with that value: a bias that is
// reshaped in one place, a matrix that is transposed, and their gradients, which come
// in another order of memory.
func TestShapesAreNobodyElses(t *testing.T) {
	const n = 3
	v := fill[float32](n, 1, 1)
	m := fill[float32](n*n, 2, 1)
	solo(t, []int{0, 1}, func(r *replica, g *G.ExprGraph) *G.Node {
		b := r.tapped(G.NewVector(g, gt.Float32, G.WithShape(n), G.WithName("b"),
			G.WithValue(gt.New(gt.WithShape(n), gt.WithBacking(slices.Clone(v))))))
		w := r.tapped(square(g, "w", n, 2))
		row := G.Must(G.Reshape(b, gt.Shape{1, n}))
		// The sum over i, j of b_j w_ij, and of b² : rows times the transposed matrix.
		a := G.Must(G.Sum(G.Must(G.Mul(row, G.Must(G.Transpose(w))))))
		return G.Must(G.Add(a, G.Must(G.Sum(G.Must(G.Square(b))))))
	}, func(r *replica, again int) error {
		gb, gw := gradOf[float32](t, r.taps.Nodes()[0]), gradOf[float32](t, r.taps.Nodes()[1])
		for j := range n {
			want := 2 * v[j]
			for i := range n {
				want += m[i*n+j]
				if gw[i*n+j] != v[j] {
					return fmt.Errorf("run %d: dw[%d,%d] is %v, want %v: %v", again, i, j, gw[i*n+j], v[j], gw)
				}
			}
			if d := gb[j] - want; d > 1e-5 || d < -1e-5 {
				return fmt.Errorf("run %d: db[%d] is %v, want %v", again, j, gb[j], want)
			}
		}
		return nil
	})
}

// A parameter of one element is a tensor too.
func TestParametersOfOneElement(t *testing.T) {
	solo(t, []int{0, 1, 2}, func(r *replica, g *G.ExprGraph) *G.Node {
		one := func(name string, shape ...int) *G.Node {
			return r.tapped(G.NewTensor(g, gt.Float32, len(shape), G.WithShape(shape...), G.WithName(name),
				G.WithValue(gt.New(gt.WithShape(shape...), gt.WithBacking([]float32{3})))))
		}
		vector, matrix := one("vector", 1), one("matrix", 1, 1)
		return G.Must(G.Add(G.Must(G.Sum(G.Must(G.Square(vector)))), G.Must(G.Sum(G.Must(G.Square(matrix))))))
	}, func(r *replica, again int) error {
		for _, n := range r.taps.Nodes() {
			g, err := n.Grad()
			if err != nil {
				return err
			}
			if v, ok := g.Data().([]float32); !ok || v[0] != 6 {
				return fmt.Errorf("run %d: the gradient of %s is %v, want 6", again, n.Name(), g)
			}
		}
		return nil
	})
}

// Two parameters with one gradient are two hooks: the tape merges equal nodes.
func TestEqualGradientsAreNotMerged(t *testing.T) {
	solo(t, []int{0, 1}, func(r *replica, g *G.ExprGraph) *G.Node {
		return G.Must(G.Sum(G.Must(G.Add(r.tapped(square(g, "a", 2, 1)), r.tapped(square(g, "b", 2, 1))))))
	}, func(r *replica, again int) error {
		for _, n := range r.taps.Nodes() {
			if g := gradOf[float32](t, n); !slices.Equal(g, []float32{1, 1, 1, 1}) {
				return fmt.Errorf("run %d: the gradient of %s is %v", again, n.Name(), g)
			}
		}
		return nil
	})
}

// Runs that accumulate, and one that reduces, are one run over all of their samples.
func TestAccumulatedRunsAreOne(t *testing.T) {
	const whole, micro = 24, 3
	want := alone[float64](t, whole)
	ranks(t, 2, func(r *replica) error {
		got, err := together[float64](r, 0, whole, micro, ddp.Options{Op: comm.Avg})
		for i := range got.params {
			for j := range got.grads[i] {
				got.grads[i][j] /= micro
			}
			if p, g := apart(got.params[i], want.params[i]), apart(got.grads[i], want.grads[i]); !(p <= 1e-14 && g <= 1e-12) {
				err = errors.Join(err, fmt.Errorf("parameter %d is %.2g apart from that of one process, its gradient %.2g", i, p, g))
			}
		}
		return err
	})
}

// A machine that runs by itself computes as if there were no taps.
func TestAMachineRunsWithoutAReducer(t *testing.T) {
	want := alone[float32](t, 6)
	n := newNet[float32](6, new(gorgonia.Taps))
	vm := G.NewTapeMachine(n.graph)
	defer vm.Close()
	solver := G.NewVanillaSolver(G.WithLearnRate(0.1))
	for s := range steps {
		if err := errors.Join(n.feed(s, 0, 6), vm.RunAll(), solver.Step(G.NodesToValueGrads(n.params))); err != nil {
			t.Fatal(err)
		}
		vm.Reset()
	}
	for i, p := range n.params {
		if !slices.Equal(data[float32](p.Value()), want.params[i]) {
			t.Errorf("parameter %d is not that of a graph without taps", i)
		}
	}
}

// Nobody divides but comm.Avg, and that once: Adam would hide a factor, norms do not.
func TestOnlyAvgDivides(t *testing.T) {
	const n = 3
	norms := map[comm.Op]float64{}
	for _, op := range []comm.Op{comm.Avg, comm.Sum} {
		ranks(t, n, func(r *replica) error {
			net := newNet[float64](8, &r.taps)
			if err := r.join(ddp.Options{Op: op}); err != nil {
				return err
			}
			vm := G.NewTapeMachine(net.graph)
			defer vm.Close()
			if err := errors.Join(net.feed(0, 8*r.Rank(), 8*n), r.taps.Run(r.ctx, vm, r.model)); err != nil {
				return err
			}
			if r.Rank() == 0 {
				for _, p := range net.params {
					for _, v := range gradOf[float64](t, p) {
						norms[op] += v * v
					}
				}
			}
			return nil
		})
	}
	if ratio := norms[comm.Sum] / norms[comm.Avg]; !(ratio > n*n-1e-9 && ratio < n*n+1e-9) {
		t.Errorf("the sum's gradients are %g times those of the mean, squared; want %d", ratio, n*n)
	}
}
