package comm_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/testenv/netns"
)

// gigabit is the rate of the slow link, in bits a second, Ethernet's headers included.
const gigabit = 1_000_000_000

// command builds gorun.
func command(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gorun")
	if out, err := exec.Command("go", "build", "-o", path, "../launcher/gorun").CombinedOutput(); err != nil {
		t.Fatalf("building gorun: %v\n%s", err, out)
	}
	return path
}

// onBoth runs gorun with one worker on each host, and returns what node 0 prints.
func onBoth(t testing.TB, gorun string, hosts []*netns.Host, sub []string, args ...string) []byte {
	t.Helper()
	var outs [2]bytes.Buffer
	var errs [2]bytes.Buffer
	var cmds [2]*exec.Cmd
	for i, h := range hosts {
		all := append(slices.Clone(sub), "--nproc", "1", "--nnodes", "2", "--node-rank", fmt.Sprint(i), "--rdzv", hosts[0].Addr.String()+":29400")
		cmds[i] = h.Command(gorun, append(all, args...)...)
		cmds[i].Env = append(os.Environ(), "GORUN_TOKEN=only for this test")
		cmds[i].Stdout, cmds[i].Stderr = &outs[i], &errs[i]
		if err := cmds[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	var failed error
	for _, c := range cmds {
		failed = errors.Join(failed, c.Wait())
	}
	if failed != nil {
		t.Fatalf("%v: %v\nnode 0: %s%s\nnode 1: %s%s", args, failed, &outs[0], &errs[0], &outs[1], &errs[1])
	}
	return outs[0].Bytes()
}

// training is a job with many weights and few tokens a step.
type training struct{ hidden, layers, sequences, tokens, steps int }

// times are milliseconds of each step: of all of it, and of parts.
type times struct{ step, forward, backward, exposed []float64 }

func (t times) and(u times) times {
	return times{append(t.step, u.step...), append(t.forward, u.forward...), append(t.backward, u.backward...), append(t.exposed, u.exposed...)}
}

func (t times) String() string {
	var b strings.Builder
	for i := range t.step {
		fmt.Fprintf(&b, "step %.0f ms: forward %.0f, backward %.0f, waiting for communication %.0f\n", t.step[i], t.forward[i], t.backward[i], t.exposed[i])
	}
	return b.String()
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// run trains it, with the keys that sets change, and returns its weights and the times of
// all steps but the first.
func (w training) run(t testing.TB, gorun string, hosts []*netns.Host, overlap bool, sets ...string) (weights []byte, took times) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "heavy.yaml")
	text := fmt.Sprintf(`name: heavy
output: %s
model: {arch: llama, layers: %d, hidden: %d, heads: 4, vocab: 64}
data: {format: synthetic, seq_len: %d}
train: {max_steps: %d, micro_batch: %d, threads: 1, lr: 1e-3}
eval: {every: 0}
checkpoint: {every: 0}
comm: {overlap: %t}
`, filepath.Join(dir, "out"), w.layers, w.hidden, w.tokens, w.steps, w.sequences, overlap)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{config}
	for _, s := range sets {
		args = append(args, "--set", s)
	}
	onBoth(t, gorun, hosts, nil, args...)
	metrics, err := os.ReadFile(filepath.Join(dir, "out", "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(metrics)) {
		var m struct {
			Step     int
			Event    string
			StepMS   float64 `json:"step_ms"`
			Forward  float64 `json:"forward_ms"`
			Backward float64 `json:"backward_ms"`
			Exposed  float64 `json:"exposed_comm_ms"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if m.Event == "" && m.Step > 1 { // the first plans and connects
			took = took.and(times{[]float64{m.StepMS}, []float64{m.Forward}, []float64{m.Backward}, []float64{m.Exposed}})
		}
	}
	if len(took.step) != w.steps-1 {
		t.Fatalf("%d steps behind the first have a time, want %d:\n%s", len(took.step), w.steps-1, metrics)
	}
	return saved(t, filepath.Join(dir, "out", "checkpoints")), took
}

// saved is all tensors of the only checkpoint below dir.
func saved(t testing.TB, dir string) []byte {
	t.Helper()
	var all []byte
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".safetensors" {
			return err
		}
		b, err := os.ReadFile(path)
		all = append(all, b...)
		return err
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("%s: %d bytes of tensors: %v", dir, len(all), err)
	}
	return all
}

// Sending gradients early changes when they are sent, and nothing else.
func TestOverlapChangesNoWeight(t *testing.T) {
	hosts, gorun := netns.New(t, netns.Options{Rate: gigabit}), command(t)
	w := training{hidden: 64, layers: 2, sequences: 1, tokens: 32, steps: 4}
	after, _ := w.run(t, gorun, hosts, false)
	early, _ := w.run(t, gorun, hosts, true)
	if !bytes.Equal(after, early) {
		t.Error("the weights of the two runs differ")
	}
}

// BenchmarkSlowLink joins two hosts by 1 Gbit/s. It reports the link's share that a
// 25 MB all-reduce fills, and how much faster a training with many weights and few
// tokens is when its gradients leave during the backward pass:
//
//	go test ./comm -run '^$' -bench SlowLink -benchtime 1x
func BenchmarkSlowLink(b *testing.B) {
	hosts, gorun := netns.New(b, netns.Options{Rate: gigabit}), command(b)
	b.Run("allreduce", func(b *testing.B) {
		for b.Loop() {
			const size = 25 << 20
			out := onBoth(b, gorun, hosts, []string{"bench", "allreduce"}, "--json", "-b", "25M", "-e", "25M", "-n", "10", "-w", "2", "--buffers", "private")
			var best float64
			for line := range bytes.Lines(out) {
				var row struct {
					InPlace bool    `json:"in_place"`
					Time    float64 `json:"time_us"`
					Wrong   int
				}
				if err := json.Unmarshal(line, &row); err != nil || row.Wrong > 0 {
					b.Fatalf("%q: %v", line, err)
				}
				if row.InPlace {
					best = row.Time
				}
			}
			// Of two ranks each sends as many bytes as the array has.
			b.ReportMetric(100*8*size/(best/1e6)/gigabit, "%-of-link")
			b.ReportMetric(best/1e3, "ms/allreduce")
		}
	})
	b.Run("training", func(b *testing.B) {
		w := training{hidden: 512, layers: 6, sequences: 2, tokens: 512, steps: 6}
		for b.Loop() {
			var after, early times
			for range 3 { // in turns, so that both see the same weather
				one, t1 := w.run(b, gorun, hosts, false)
				two, t2 := w.run(b, gorun, hosts, true)
				after, early = after.and(t1), early.and(t2)
				if !bytes.Equal(one, two) {
					b.Error("the weights of the two runs differ")
				}
			}
			b.Logf("after the backward pass:\n%sduring it:\n%s", after, early)
			b.ReportMetric(median(after.step), "ms/step-after")
			b.ReportMetric(median(early.step), "ms/step-during")
			b.ReportMetric(median(after.exposed), "ms/wait-after")
			b.ReportMetric(median(early.exposed), "ms/wait-during")
			b.ReportMetric(median(after.step)/median(early.step), "times-faster")
		}
	})
}

// BenchmarkSlowLinkCompressed joins two hosts by 100 Mbit/s, and reports how many times
// faster a step is with each way of compressing its gradients:
//
//	go test ./comm -run '^$' -bench SlowLinkCompressed -benchtime 1x
func BenchmarkSlowLinkCompressed(b *testing.B) {
	hosts, gorun := netns.New(b, netns.Options{Rate: gigabit / 10}), command(b)
	w := training{hidden: 256, layers: 4, sequences: 1, tokens: 128, steps: 6}
	for b.Loop() {
		_, plain := w.run(b, gorun, hosts, true, "parallel.bucket_cap_mb=2")
		b.Logf("none: step %.0f ms, waiting %.0f", median(plain.step), median(plain.exposed))
		b.ReportMetric(median(plain.step), "ms/step")
		for _, scheme := range []string{"fp16", "bf16", "int8", "powersgd", "topk"} {
			_, took := w.run(b, gorun, hosts, true, "parallel.bucket_cap_mb=2", "parallel.compress="+scheme)
			b.Logf("%s: step %.0f ms, waiting %.0f", scheme, median(took.step), median(took.exposed))
			b.ReportMetric(median(plain.step)/median(took.step), scheme+"-times-faster")
		}
	}
}
