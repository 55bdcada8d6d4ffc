package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/runtime/device"
)

// matrixModels are small models of the built-in kinds. A tied head's gradient has two
// writers at both ends of the backward pass; recomputation uses each block once more.
var matrixModels = []struct {
	name  string
	sets  []string
	micro map[int][]int // numbers of micro-steps, by that of ranks
}{
	{"llama", []string{"train.max_grad_norm=0"}, map[int][]int{1: {1, 2, 4}, 2: {1, 2, 4}, 3: {1, 2, 4}, 4: {1, 2, 4}}},
	{"tied llama, recomputed", []string{"model.tie_embeddings=true", "train.recompute=block"}, map[int][]int{1: {4}, 2: {2}, 3: {1}, 4: {4}}},
	{"qwen3", []string{"model.arch=qwen3", "model.head_dim=12", "train.recompute=norms"}, map[int][]int{1: {2}, 2: {1}, 3: {2}}},
	{"gpt2", []string{"model.arch=gpt2", "train.recompute=norms"}, map[int][]int{1: {2}, 2: {4}, 3: {2}, 4: {1}}},
}

// tiny models, in several buckets.
var tiny = []string{"model.hidden=16", "model.heads=2", "model.kv_heads=2", "model.vocab=32", "parallel.first_bucket_mb=0.002", "parallel.bucket_cap_mb=0.005"}

// Real models on 1 to 4 ranks, in 1, 2 and 4 micro-steps: each stage has ddp's losses and
// norms in each step, and its weights and moments after 20 of them: bit by bit, where
// sums are made in the same order and no norm clips; else as near as f32 is. And
// ddp's are those of one rank. What a rank has allocated is what was planned.
func TestShardedModelsTrainAsDDPDoes(t *testing.T) {
	for _, m := range matrixModels {
		t.Run(m.name, func(t *testing.T) {
			var one []stepRecord
			for _, n := range []int{1, 2, 3, 4} {
				for _, micro := range m.micro[n] {
					what := fmt.Sprintf("%d ranks, %d micro-steps", n, micro)
					sets := slices.Concat(tiny, m.sets, []string{"train.max_steps=20", "data.seq_len=4", "eval.every=0", "checkpoint.every=0",
						fmt.Sprint("train.micro_batch=", 48/n/micro), fmt.Sprint("train.grad_accum=", micro)})
					plain := t.TempDir()
					trainDirect(t, n, nil, append(sets, "output="+plain)...)
					want := readSteps(t, plain)
					if one == nil {
						one = want
					}
					near(t, what+" of ddp against one", one, want, false)
					for stage := 1; stage <= 3; stage++ {
						dir, what := t.TempDir(), fmt.Sprintf("stage %d, %s", stage, what)
						overlap := (stage+micro)%2 == 0
						trainDirect(t, n, allocatedAsPlanned(t, what), append(sets, "output="+dir,
							fmt.Sprint("parallel.strategy=zero", stage), fmt.Sprint("comm.overlap=", overlap))...)
						exact := m.name == "llama" && (stage == 1 || micro == 1)
						near(t, what, want, readSteps(t, dir), exact)
						if a, b := weights(t, plain, 20), weights(t, dir, 20); exact {
							sameWeights(t, what, a, b)
						} else {
							nearWeights(t, what, a, b)
						}
					}
				}
			}
		})
	}
}

// trainDirect runs a job of n ranks, whose collectives all sum in the order of the
// ranks, and hands each rank's job to after at its end.
func trainDirect(t testing.TB, n int, after func(*job), sets ...string) {
	t.Helper()
	groups, err := comm.Local(n, comm.Options{Algo: comm.Direct})
	if err != nil {
		t.Fatal(err)
	}
	cfg := parse(t, sets...)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	errs := make([]error, n)
	var all sync.WaitGroup
	for r, g := range groups {
		all.Go(func() {
			j := &job{cfg: cfg, out: status.NewWriter(&console{})}
			defer j.close()
			err := j.open(ctx, place{ranks: n}, joining(g))
			if err == nil {
				err = j.train(ctx)
			}
			if err != nil {
				g.Abort(err)
			} else if after != nil {
				after(j)
			}
			errs[r] = err
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%d ranks, %v: %v", n, sets, err)
	}
}

// allocatedAsPlanned compares what a rank holds at the end of a job with the plan.
func allocatedAsPlanned(t *testing.T, what string) func(*job) {
	return func(j *job) {
		s := j.keeper.(*sharded)
		stats, err := s.Stats(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		got, want := stats.Memory, s.Plan().Memory()
		for _, x := range s.slots {
			got.Moments += int64(x.M.Buf.Len() + x.V.Buf.Len())
		}
		if j.rank() > 0 { // the plan is for the first, which has the least padding
			got.Moments = want.Moments
		}
		if got != want {
			t.Errorf("%s, rank %d: holds %+v, the plan says %+v", what, j.rank(), got, want)
		}
	}
}

// nearWeights compares all tensors of two checkpoints, f32 each, relative to the
// largest element of each.
func nearWeights(t *testing.T, what string, a, b map[string][]byte) {
	t.Helper()
	if len(a) == 0 || len(a) != len(b) {
		t.Fatalf("%s: %d and %d tensors", what, len(a), len(b))
	}
	for name := range a {
		x, y := device.View[float32](device.Host(a[name])), device.View[float32](device.Host(b[name]))
		largest, off := 0.0, 0.0
		for i := range x {
			largest = max(largest, math.Abs(float64(x[i])))
			off = max(off, math.Abs(float64(x[i])-float64(y[i])))
		}
		limit := 1e-4
		if strings.Contains(name, ".c_attn.") && strings.HasSuffix(name, ".bias") {
			// The keys' bias changes no softmax: its gradient is what rounding leaves
			// of zero, and Adam enlarges that.
			limit = 1e-3
		}
		if !(off <= limit*largest) {
			t.Errorf("%s: %s differs by %g, its largest element is %g", what, name, off, largest)
		}
	}
}
