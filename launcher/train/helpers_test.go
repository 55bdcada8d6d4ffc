package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/runtime/checkpoint"
	"github.com/gorun-dev/gorun/runtime/device"
)

// console collects what rank 0 tells the user.
type console struct {
	mu   sync.Mutex
	b    bytes.Buffer
	told func(line string) // may be nil
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told != nil {
		c.told(string(p))
	}
	return c.b.Write(p)
}
func (c *console) Close() error { return nil }
func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.String()
}

const base = `
seed: 7
model: {arch: llama, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 64}
data: {format: synthetic, seq_len: 16}
train: {max_steps: 6, micro_batch: 12, lr: 1e-2, warmup_steps: 2, threads: 1}
eval: {every: 3, steps: 1}
checkpoint: {every: 2, keep: 0, export: false}
log: {plot: false, tensorboard: false}
`

// trainRanks runs a job of n ranks in this process, with base changed by sets, and
// returns what rank 0 said and the ranks' errors.
func trainRanks(t *testing.T, ctx context.Context, n int, sets ...string) (string, error) {
	t.Helper()
	return trainTelling(t, ctx, n, nil, sets...)
}

// trainTelling is trainRanks that hands each line of rank 0 to told.
func trainTelling(t *testing.T, ctx context.Context, n int, told func(string), sets ...string) (string, error) {
	t.Helper()
	cfg := parse(t, sets...)
	said, errs := onRanks(t, n, told, func(g *comm.Group, out *status.Writer) error {
		return run(ctx, cfg, out, place{ranks: n}, joining(g))
	})
	return said, errors.Join(errs...)
}

// trainChanged is trainRanks with each rank's job handed to change when it is
// built, before its first step, and to after, when it has ended without an error.
// The ranks' errors come apart.
func trainChanged(t *testing.T, n int, change, after func(j *job), sets ...string) (string, []error) {
	t.Helper()
	return trainConfig(t, n, parse(t, sets...), change, after)
}

// trainConfig is trainChanged for a configuration of its own.
func trainConfig(t *testing.T, n int, cfg *config.Config, change, after func(j *job)) (string, []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return onRanks(t, n, nil, func(g *comm.Group, out *status.Writer) error {
		j := &job{cfg: cfg, out: out}
		defer j.close()
		err := j.open(ctx, place{ranks: n}, joining(g))
		if err == nil {
			change(j)
			err = j.train(ctx)
		}
		if err != nil {
			g.Abort(err)
		} else if after != nil {
			after(j)
		}
		return err
	})
}

// onRanks calls f for each of n ranks at once, and returns what rank 0 wrote to
// its out and each rank's error. told, where it is not nil, gets rank 0's lines.
func onRanks(t *testing.T, n int, told func(string), f func(g *comm.Group, out *status.Writer) error) (string, []error) {
	t.Helper()
	groups, err := comm.Local(n)
	if err != nil {
		t.Fatal(err)
	}
	said := &console{told: told}
	errs := make([]error, n)
	var all sync.WaitGroup
	for r, g := range groups {
		out := said
		if r > 0 {
			out = &console{}
		}
		all.Go(func() { errs[r] = f(g, status.NewWriter(out)) })
	}
	all.Wait()
	return said.String(), errs
}

// parse is base changed by sets.
func parse(t testing.TB, sets ...string) *config.Config {
	t.Helper()
	cfg, err := config.Parse("test.yaml", []byte(base), append(sets, "comm.timeout=1m"))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// joining is the way to a world that is there already.
func joining(g *comm.Group) joiner {
	return func(context.Context, config.Comm, device.Device) (*comm.Group, error) { return g, nil }
}

func mustTrain(t *testing.T, n int, sets ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	said, err := trainRanks(t, ctx, n, sets...)
	if err != nil {
		t.Fatalf("%d ranks, %v: %v", n, sets, err)
	}
	return said
}

// readSteps reads the training lines of a run's metrics.
func readSteps(t testing.TB, output string) (out []stepRecord) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(output, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, `"step_ms"`) && !strings.Contains(line, `"event"`) {
			var r stepRecord
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatal(err)
			}
			out = append(out, r)
		}
	}
	return out
}

// readEnd reads the last line of a run's metrics.
func readEnd(t *testing.T, output string) (r endRecord) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(output, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil || r.Event != "end" {
		t.Fatalf("the last line is %s (%v)", lines[len(lines)-1], err)
	}
	return r
}

// weights reads all tensors of a checkpoint.
func weights(t *testing.T, output string, step int) map[string][]byte {
	t.Helper()
	c, err := checkpoint.Open(filepath.Join(output, "checkpoints", fmt.Sprintf("step-%08d", step)))
	if err != nil {
		t.Fatal(err)
	}
	return tensorsOf(t, c)
}

func tensorsOf(t *testing.T, c *checkpoint.Checkpoint) map[string][]byte {
	t.Helper()
	r, err := c.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out := map[string][]byte{}
	for _, name := range r.Names() {
		x, _ := r.Find(name)
		n, _ := x.Numel()
		err := r.Read(name, 0, n, func(_ int, b []byte) error {
			out[name] = append(out[name], b...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func sameWeights(t *testing.T, what string, a, b map[string][]byte) {
	t.Helper()
	if len(a) == 0 || len(a) != len(b) {
		t.Fatalf("%s: %d and %d tensors", what, len(a), len(b))
	}
	for name := range a {
		if !bytes.Equal(a[name], b[name]) {
			t.Errorf("%s: %s differs", what, name)
		}
	}
}
