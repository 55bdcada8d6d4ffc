package zero

import (
	"errors"
	"fmt"
	"github.com/gorun-dev/gorun/runtime/arrays"
	"log/slog"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// ddpOptions are the defaults.
var ddpOptions = ddp.Options{}

// outcome is what a run has come to.
type outcome struct {
	weights map[string][]float32
	norms   []float64
}

// ddpRun is a training run of one rank with ddp: a replica, masters, all moments.
type ddpRun struct {
	*ddp.DDP
	*param.Replica
}

// trainDDP makes steps with plain data parallelism on n ranks.
func trainDDP(t *testing.T, kind string, n, accumulate, steps int, params func() []*param.Param, o ddp.Options) outcome {
	t.Helper()
	var groups []ddp.Group
	if kind == "comm" {
		list, err := comm.Local(n, comm.Options{Timeout: time.Minute, Algo: comm.Direct, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range list {
			defer g.Close()
			groups = append(groups, g)
		}
	} else {
		for _, g := range newHub(n) {
			groups = append(groups, g)
		}
	}
	var wg sync.WaitGroup
	outcomes, errs := make([]outcome, n), make([]error, n)
	for rank, g := range groups {
		wg.Go(func() { outcomes[rank], errs[rank] = trainDDPRank(t, g, accumulate, steps, params(), o) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return outcomes[0]
}

func trainDDPRank(t *testing.T, g ddp.Group, accumulate, steps int, params []*param.Param, o ddp.Options) (out outcome, err error) {
	compute, comms := device.NewCPUStream("compute", nil), device.NewCPUStream("comm", nil)
	defer compute.Close()
	defer comms.Close()
	sink, err := ddp.New(t.Context(), g, compute, comms, params, o)
	if err != nil {
		return out, err
	}
	defer sink.Close()
	replica, err := param.NewReplica(device.NewCPU(), params)
	if err != nil {
		return out, err
	}
	masters, first, second := map[*param.Param][]float32{}, map[*param.Param][]float32{}, map[*param.Param][]float32{}
	round := func(p *param.Param) {
		arrays.Host{User: "zero"}.Convert(compute, replica.Weight(p).Reshape(p.Numel()), tensor.New(device.Of(masters[p]), dtype.F32, p.Numel()))
	}
	for _, p := range params {
		masters[p], first[p], second[p] = initials(p), make([]float32, p.Numel()), make([]float32, p.Numel())
		round(p)
	}
	model := &toyModel{params: params, see: identity, do: func(name string, f func()) {
		compute.Do(name, func() error { f(); return nil })
	}}
	for step := 1; step <= steps; step++ {
		if err := model.step(t.Context(), ddpRun{sink, replica}, g.Rank(), g.Size(), accumulate); err != nil {
			return out, err
		}
		grads := map[*param.Param]tensor.Tensor{}
		for _, p := range params {
			if !p.Frozen {
				grads[p] = sink.Grad(p)
			}
		}
		compute.Do("optimizer", func() error {
			squares := 0.0
			for _, p := range params {
				if !p.Frozen {
					load := loader(grads[p])
					for e := range p.Numel() {
						squares += load(e) * load(e)
					}
				}
			}
			out.norms = append(out.norms, math.Sqrt(squares))
			for p, g := range grads {
				adamW(masters[p], first[p], second[p], loader(g), clip(squares), step, !p.NoDecay)
			}
			return nil
		})
		for p := range grads {
			round(p)
		}
	}
	err = compute.Synchronize(t.Context())
	out.weights = map[string][]float32{}
	for _, p := range params {
		load := loader(replica.Weight(p))
		out.weights[p.Name] = nil
		for e := range p.Numel() {
			out.weights[p.Name] = append(out.weights[p.Name], float32(load(e)))
		}
	}
	return out, err
}

// equal compares got with want: bit by bit, or within a tolerance of 1.
func equal(t *testing.T, what string, got, want outcome, tolerance float64) {
	t.Helper()
	if len(got.norms) != len(want.norms) || len(got.weights) != len(want.weights) {
		t.Errorf("%s: %d norms and %d weights, want %d and %d", what, len(got.norms), len(got.weights), len(want.norms), len(want.weights))
		return
	}
	for i, n := range got.norms {
		// The norm's own sum has another order in each layout.
		if !(math.Abs(n-want.norms[i]) <= (tolerance+1e-13)*want.norms[i]) {
			t.Errorf("%s: the norm of step %d is %v, want %v", what, i, n, want.norms[i])
			return
		}
	}
	for name, w := range want.weights {
		for e := range w {
			if !(math.Abs(float64(got.weights[name][e])-float64(w[e])) <= tolerance) {
				t.Errorf("%s: %s[%d] is %v, want %v", what, name, e, got.weights[name][e], w[e])
				return
			}
		}
	}
}

// caps are buckets of one parameter, of odd sizes, and larger than the model.
var caps = []PlanOptions{{FirstBucket: 1, BucketCap: 1}, {FirstBucket: 100, BucketCap: 1003}, {}}

const trainSteps = 20

// Norms and weights after 20 steps are those of ddp: bit by bit where gradients are
// added up in the same order, which is in stage 1, and in the others without
// accumulation; else within f32's rounding. And they are those of one rank with the
// whole batch.
func TestTrainingEqualsDDP(t *testing.T) {
	exact, norms := reference(t.Context(), toyF32(), trainSteps)
	whole := outcome{map[string][]float32{}, norms}
	for name, w := range exact {
		whole.weights[name] = nil
		for _, x := range w {
			whole.weights[name] = append(whole.weights[name], float32(x))
		}
	}
	for _, n := range []int{1, 2, 3, 4} {
		for _, accumulate := range []int{1, 2, 4} {
			want := map[string]outcome{
				"hub":  trainDDP(t, "hub", n, accumulate, trainSteps, toyF32, ddpOptions),
				"comm": trainDDP(t, "comm", n, accumulate, trainSteps, toyF32, ddpOptions),
			}
			want["gpu"] = want["hub"]
			for i, o := range caps {
				for k := range 6 {
					var overlap bool
					o.Stage, overlap, o.Tied = 1+k/2, k%2 == 0, nil
					if i > 0 {
						o.Tied = toyTied
					}
					kinds := []string{"gpu", "comm"}
					if !overlap {
						kinds = kinds[:1]
					}
					t.Run(fmt.Sprintf("ranks=%d accumulate=%d caps=%d stage=%d overlap=%t", n, accumulate, i, o.Stage, overlap), func(t *testing.T) {
						ranks(t, n, toyF32, func(w *worker) {
							if !w.start(Options{PlanOptions: o, NoOverlap: !overlap}) {
								return
							}
							r := w.train(accumulate)
							if !r.load() || !r.steps(trainSteps) {
								return
							}
							got := outcome{r.weights(), r.norms}
							tolerance := 0.0
							if o.Stage > 1 && accumulate > 1 {
								tolerance = 1e-5
							}
							equal(t, fmt.Sprintf("rank %d against ddp", w.rank), got, want[w.engine], tolerance)
							equal(t, fmt.Sprintf("rank %d against one rank", w.rank), got, whole, 1e-4)
							w.plannedMemory(o.Tied != nil)
						}, kinds...)
					})
				}
			}
		}
	}
}
