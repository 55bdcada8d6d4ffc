package train

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// wants checks that every rank's error holds all of texts.
func wants(t *testing.T, errs []error, texts ...string) {
	t.Helper()
	for r, err := range errs {
		for _, text := range texts {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("rank %d: got error %v, want one with %q", r, err, text)
			}
		}
	}
}

// faulty is a model that does on one rank, in one step, what it should not.
type faulty struct {
	models.Model
	j          *job
	rank, step int // the fault's place; steps count from 1
	loss       func(loss tensor.Tensor)
	scale      func(scale float32) float32
	skip       string // the parameter whose gradient is left out
}

func (f *faulty) now() bool { return f.j.rank() == f.rank && f.j.done+1 == f.step }

func (f *faulty) Backward(w param.Weights, g param.GradSink, scale float32) {
	if f.now() && f.scale != nil {
		scale = f.scale(scale)
	}
	if f.now() && f.skip != "" {
		g = &skipping{GradSink: g, name: f.skip}
	}
	f.Model.Backward(w, g, scale)
	if f.now() && f.loss != nil {
		loss := f.j.scalars.loss
		f.j.compute.(*device.CPUStream).Do("fault", func() error { f.loss(loss); return nil })
	}
}

// skipping keeps one gradient from the sink behind it.
type skipping struct {
	param.GradSink
	name    string
	written bool
	scratch tensor.Tensor
}

func (s *skipping) Get(p *param.Param) (tensor.Tensor, bool) {
	if p.Name != s.name {
		return s.GradSink.Get(p)
	}
	if !s.written {
		s.written = true
		s.scratch, _ = tensor.Alloc(device.NewCPU(), p.DType, p.Shape...)
		return s.scratch, false
	}
	return s.scratch, true
}

func (s *skipping) Ready(p *param.Param) {
	if p.Name != s.name {
		s.GradSink.Ready(p)
	}
}

// The figures of a step are sums, means and maxima over the ranks, alike on all.
func TestWhatRanksTellEachOther(t *testing.T) {
	_, errs := trainChanged(t, 3, func(j *job) {
		r, loss := float64(j.rank()), 1.0
		if j.rank() == 1 {
			loss = math.NaN()
		}
		got, err := j.tell(t.Context(), loss, times{10 - r, 2 * r, 3 * r, 4 * r, 5 * r, 6 * r})
		if err != nil {
			t.Errorf("rank %d: %v", j.rank(), err)
		}
		want := told{mean: times{9, 2, 3, 4, 5, 6}, slowest: times{10, 4, 6, 8, 10, 12}, memory: got.memory, notFinite: 1,
			laggard: laggard{0, 7.5}} // 10 of work against 5 and 0
		if got != want || got.memory <= 0 {
			t.Errorf("rank %d knows %+v, want %+v", j.rank(), got, want)
		}
	}, nil, "output="+t.TempDir(), "train.micro_batch=4", "train.max_steps=3")
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// One weight of one rank changes behind the job's back: the next comparison ends
// it on every rank and says which and where, before a checkpoint is written.
func TestAWeightThatDriftsIsNamed(t *testing.T) {
	const name = "model.layers.1.mlp.gate_up_proj.weight"
	perturb := func(j *job) {
		if j.rank() != 1 {
			return
		}
		for _, p := range j.model.Params() {
			if p.Name == name {
				j.weights.Weight(p).F32()[5] += 1e-3
			}
		}
	}
	dir := t.TempDir()
	_, errs := trainChanged(t, 3, perturb, nil, "output="+dir, "train.micro_batch=4", "parallel.check_replicas=4", "train.lr=1e-9", "checkpoint.every=4")
	wants(t, errs, "after step 4: ", "weights have drifted apart", "\n  "+name+" on rank 1 on ", "go on from a checkpoint")
	for r, err := range errs {
		if strings.Contains(err.Error(), "layers.0") {
			t.Errorf("rank %d names a weight that is alike everywhere: %v", r, err)
		}
	}
	if got := len(readSteps(t, dir)); got != 4 {
		t.Errorf("%d steps were made, the comparison is after the fourth", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "checkpoints", "step-00000004")); err == nil {
		t.Error("the weights that had drifted were saved")
	}
	_, errs = trainChanged(t, 3, perturb, nil, "output="+t.TempDir(), "train.micro_batch=4", "parallel.check_replicas=0")
	if err := errors.Join(errs...); err != nil {
		t.Errorf("without comparison: %v", err)
	}
	_, errs = trainChanged(t, 2, func(*job) {}, nil, "output="+t.TempDir(), "train.micro_batch=6", "parallel.check_replicas=1")
	if err := errors.Join(errs...); err != nil {
		t.Errorf("ranks that are alike: %v", err)
	}
}

// A rank whose backward pass leaves a gradient out is named on every rank, in
// that step: rank, host, parameter and what to do.
func TestARankThatSkipsAGradientIsNamed(t *testing.T) {
	const name = "model.layers.0.self_attn.qkv_proj.weight"
	dir := t.TempDir()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	skip := func(j *job) { j.model = &faulty{Model: j.model, j: j, rank: 1, step: 3, skip: name} }
	_, errs := trainChanged(t, 3, skip, nil, "output="+dir, "train.micro_batch=4")
	wants(t, errs, "micro-step 3: ", "rank 1 on "+host, "no gradient for "+name, "set Options.FindUnused (parallel.find_unused_parameters in train.yaml)")
	if got := len(readSteps(t, dir)); got > 2 { // rank 0 may be a little behind
		t.Errorf("%d steps were made, the third fails", got)
	}
	t.Logf("rank 0 says: %v", errs[0])
	t.Logf("rank 1 says: %v", errs[1])

	// The same is no fault where it is allowed: the other ranks' gradient counts.
	_, errs = trainChanged(t, 3, skip, nil, "output="+t.TempDir(), "train.micro_batch=4", "parallel.find_unused_parameters=true", "parallel.static_graph=false", "parallel.check_replicas=1")
	if err := errors.Join(errs...); err != nil {
		t.Errorf("find_unused_parameters: %v", err)
	}
	// But not where all steps were promised to be alike.
	_, errs = trainChanged(t, 3, skip, nil, "output="+t.TempDir(), "train.micro_batch=4", "parallel.find_unused_parameters=true")
	wants(t, errs, "micro-step 3: ", "rank 1 on "+host, "StaticGraph: no gradient for "+name, "parallel.static_graph in train.yaml")
}

// What is not finite on one rank, in its loss or its gradients, makes all ranks
// skip the step; the next one goes on from the same weights.
func TestWhatIsNotFiniteOnOneRankIsSkippedByAll(t *testing.T) {
	clean := t.TempDir()
	mustTrain(t, 3, "output="+clean, "train.micro_batch=4", "checkpoint.every=1")
	if loss := float64(readSteps(t, clean)[0].Loss); !(math.Abs(loss-math.Log(64)) < 0.3) {
		t.Errorf("the first loss is %v, of guessing 64 tokens it is %v", loss, math.Log(64))
	}
	for name, fault := range map[string]faulty{
		"loss is NaN":          {loss: func(l tensor.Tensor) { l.F64()[0] = math.NaN() }},
		"loss is infinite":     {loss: func(l tensor.Tensor) { l.F64()[0] = math.Inf(1) }},
		"gradient is NaN":      {scale: func(float32) float32 { return float32(math.NaN()) }},
		"gradient is infinite": {scale: func(float32) float32 { return math.MaxFloat32 }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			said, errs := trainChanged(t, 3, func(j *job) {
				f := fault
				f.Model, f.j, f.rank, f.step = j.model, j, 1, 3
				j.model = &f
			}, nil, "output="+dir, "train.micro_batch=4", "checkpoint.every=1", "parallel.check_replicas=1")
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			for _, r := range readSteps(t, dir) {
				if r.Skipped != (r.Step == 3) {
					t.Errorf("step %d: skipped is %t", r.Step, r.Skipped)
				}
			}
			sameWeights(t, "before the fault", weights(t, clean, 2), weights(t, dir, 2))
			sameWeights(t, "behind the fault", weights(t, clean, 2), weights(t, dir, 3))
			want := "step 3 is skipped on all ranks: the losses are finite, the gradients are not"
			if fault.loss != nil {
				want = "step 3 is skipped on all ranks: the loss of rank 1 on "
			}
			if !strings.Contains(said, want) {
				t.Errorf("said %s, want %q", said, want)
			}
		})
	}
}

// A NaN that stays, in a weight of one rank, ends the job after as many steps as
// the configuration allows, with the weights of before.
func TestANaNThatStaysEndsTheJob(t *testing.T) {
	dir := t.TempDir()
	_, errs := trainChanged(t, 3, func(j *job) {
		if j.rank() == 2 {
			j.weights.Weight(j.model.Params()[1]).F32()[0] = float32(math.NaN())
		}
	}, nil, "output="+dir, "train.micro_batch=4", "train.skip_nonfinite=3")
	wants(t, errs, "in 3 steps in a row (train.skip_nonfinite)", "the weights are those of step 0")
	got := readSteps(t, dir)
	if len(got) != 3 || slices.ContainsFunc(got, func(r stepRecord) bool { return !r.Skipped }) {
		t.Errorf("steps %+v, want three that are skipped", got)
	}
}

// The settings for awkward models reach ddp, seen by what it calls and whether
// it rebuilds its plan, and change nothing for a model that uses all parameters.
func TestSettingsForAwkwardModelsChangeNothing(t *testing.T) {
	plain := t.TempDir()
	mustTrain(t, 2, "output="+plain, "train.micro_batch=6")
	for _, c := range []struct {
		unused, static bool
		bitmaps        int // all-reduces of the parameters in use
		rebuilt        bool
	}{
		{false, true, 0, true},
		{false, false, 0, true},
		{true, false, 6, false},
		{true, true, 1, true},
	} {
		dir := t.TempDir()
		var mu sync.Mutex
		_, errs := trainChanged(t, 2, func(*job) {}, func(j *job) {
			mu.Lock()
			defer mu.Unlock()
			bitmaps := 0
			for _, r := range j.group.Recent() {
				if r.Kind == transport.AllReduce && r.DType == dtype.I32 {
					bitmaps++
				}
			}
			if bitmaps != c.bitmaps {
				t.Errorf("%+v: rank %d asked %d times which parameters are in use", c, j.rank(), bitmaps)
			}
			if got := j.sink.(*ddp.DDP).Plan().Rebuilt; got != c.rebuilt {
				t.Errorf("%+v: rank %d: rebuilt is %t", c, j.rank(), got)
			}
		}, "output="+dir, "train.micro_batch=6", "eval.every=0", "checkpoint.every=0",
			fmt.Sprint("parallel.find_unused_parameters=", c.unused), fmt.Sprint("parallel.static_graph=", c.static))
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		sameWeights(t, fmt.Sprintf("%+v", c), weights(t, plain, 6), weights(t, dir, 6))
	}
}

func TestARankWhoseCollectiveFailedLeavesItsLatestCalls(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(status.ErrorFileVariable, filepath.Join(dir, "error.json"))
	groups, err := comm.Local(1)
	if err != nil {
		t.Fatal(err)
	}
	cfg := parse(t, "output="+t.TempDir())
	abort := func(line string) {
		if strings.Contains(line, `"step":2,`) {
			groups[0].Abort(errors.New("deliberate"))
		}
	}
	err = run(t.Context(), cfg, status.NewWriter(&console{told: abort}), place{ranks: 1}, joining(groups[0]))
	if err == nil || !strings.Contains(err.Error(), "deliberate") {
		t.Fatalf("got %v", err)
	}
	calls, err := os.ReadFile(filepath.Join(dir, "collectives.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(calls), "AllReduce(sum, f64, ") || !strings.Contains(string(calls), " ended, took ") {
		t.Errorf("the latest calls are told as:\n%s", calls)
	}
}
