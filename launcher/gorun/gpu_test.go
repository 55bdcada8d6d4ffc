package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// gpus skips the test unless the host shows n GPUs.
func gpus(t *testing.T, n int) {
	t.Helper()
	feature := "gpu"
	if n > 1 {
		feature = fmt.Sprintf("gpu:%d", n)
	}
	if have, err := cuda.Count(); err != nil || have < n {
		testenv.Skip(t, feature, fmt.Sprintf("the host shows %d GPUs (%v)", have, err))
	}
}

// small is a model that learns something in 200 steps, with heads that both
// kernels of attention have.
const small = `
output: out
model: {arch: %s, layers: 2, hidden: 128, heads: 2, vocab: 509}
data: {format: synthetic, seq_len: 129}
train: {max_steps: 200, micro_batch: 8, lr: 2e-3, warmup_steps: 10}
eval: {every: 100, steps: 1}
checkpoint: {every: 100}
`

// gpuRun trains in a new folder, which it returns with the lines of metrics.jsonl.
func gpuRun(t *testing.T, arch string, nproc int, sets ...string) (dir string, lines []map[string]float64) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "train.yaml"), fmt.Appendf(nil, small, arch), 0o666); err != nil {
		t.Fatal(err)
	}
	return dir, gpuGoOn(t, dir, nproc, sets...)
}

// gpuGoOn trains in a folder that is there already.
func gpuGoOn(t *testing.T, dir string, nproc int, sets ...string) (lines []map[string]float64) {
	t.Helper()
	args := []string{"--nproc", fmt.Sprint(nproc)}
	for _, s := range sets {
		if strings.HasPrefix(s, "--") {
			args = append(args, s)
		} else {
			args = append(args, "--set", s)
		}
	}
	out, err := gorunCommand(t, dir, append(args, "train.yaml")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	if testing.Verbose() {
		t.Logf("%v\n%s", args, firstLines(out, 6))
	}
	metrics, err := os.ReadFile(filepath.Join(dir, "out", "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(metrics) {
		var values map[string]any
		if err := json.Unmarshal(line, &values); err != nil {
			t.Fatal(err)
		}
		if values["loss"] == nil || values["event"] != nil {
			continue // an evaluation, or the summary
		}
		numbers := map[string]float64{}
		for k, v := range values {
			if x, ok := v.(float64); ok {
				numbers[k] = x
			}
		}
		lines = append(lines, numbers)
	}
	return lines
}

func firstLines(b []byte, n int) string {
	return strings.Join(strings.SplitN(string(b), "\n", n+1)[:min(n, strings.Count(string(b), "\n"))], "\n")
}

// apart is the largest and the mean distance of two curves of losses.
func apart(t *testing.T, a, b []map[string]float64) (most, mean float64) {
	t.Helper()
	if len(a) != len(b) || len(a) != 200 {
		t.Fatalf("%d and %d steps", len(a), len(b))
	}
	for i := range a {
		d := math.Abs(a[i]["loss"] - b[i]["loss"])
		if !(d <= most) {
			most = d
		}
		mean += d / float64(len(a))
	}
	return most, mean
}

// On one GPU, on two and on the CPU a model learns alike, but for the rounding of
// bf16, and on one GPU twice with the same bits.
func TestGPUsTrainAsTheCPU(t *testing.T) {
	gpus(t, 1)
	for _, arch := range []string{"qwen2", "qwen3", "gpt2"} {
		t.Run(arch, func(t *testing.T) {
			_, onCPU := gpuRun(t, arch, 1, "train.device=cpu")
			first, onGPU := gpuRun(t, arch, 1, "train.device=cuda")
			again, rerun := gpuRun(t, arch, 1, "train.device=cuda")
			if fall := onCPU[0]["loss"] - onCPU[199]["loss"]; fall < 1 {
				t.Errorf("the loss fell by %g only", fall)
			}
			// Weights rounded to 8 bits shift a loss by about their rounding's share of it.
			most, mean := apart(t, onCPU, onGPU)
			t.Logf("CPU and GPU: at most %.4f apart, %.4f on average; the last losses are %.4f and %.4f", most, mean, onCPU[199]["loss"], onGPU[199]["loss"])
			if !(most < 0.1 && mean < 0.015) {
				t.Errorf("the curves of CPU and GPU are up to %g apart, %g on average", most, mean)
			}
			sameFiles(t, first, again, "step-00000200")
			for i := range onGPU {
				if onGPU[i]["loss"] != rerun[i]["loss"] || onGPU[i]["grad_norm"] != rerun[i]["grad_norm"] {
					t.Fatalf("step %d of two equal runs: %v and %v", i+1, onGPU[i], rerun[i])
				}
			}
			for _, sets := range [][]string{
				{"train.recompute=norms"}, {"train.recompute=block"},
			} {
				dir, _ := gpuRun(t, arch, 1, append(sets, "train.device=cuda")...)
				sameFiles(t, first, dir, "step-00000200")
			}
			if err := os.RemoveAll(filepath.Join(again, "out", "checkpoints", "step-00000200")); err != nil {
				t.Fatal(err)
			}
			gpuGoOn(t, again, 1, "--resume", "train.device=cuda")
			sameFiles(t, first, again, "step-00000200")
			_, split := gpuRun(t, arch, 1, "train.device=cuda", "train.micro_batch=2", "train.grad_accum=4")
			most, mean = apart(t, onGPU, split)
			t.Logf("one and four micro-steps: at most %.4f apart, %.4f on average", most, mean)
			if !(most < 0.1 && mean < 0.015) {
				t.Errorf("the curves of one and of four micro-steps are up to %g apart, %g on average", most, mean)
			}
			t.Run("two", func(t *testing.T) {
				gpus(t, 2)
				_, onTwo := gpuRun(t, arch, 2, "train.device=cuda", "train.micro_batch=4")
				most, mean := apart(t, onGPU, onTwo)
				t.Logf("one GPU and two: at most %.4f apart, %.4f on average", most, mean)
				if !(most < 0.1 && mean < 0.015) {
					t.Errorf("the curves of one GPU and two are up to %g apart, %g on average", most, mean)
				}
			})
		})
	}
}

// sameFiles compares the tensors of two runs' checkpoints.
func sameFiles(t *testing.T, a, b, step string) {
	t.Helper()
	x, errX := tensorsOf(filepath.Join(a, "out", "checkpoints", step))
	y, errY := tensorsOf(filepath.Join(b, "out", "checkpoints", step))
	if err := errors.Join(errX, errY); err != nil {
		t.Fatal(err)
	}
	if len(x) != len(y) {
		t.Fatalf("%s: %d and %d tensors", step, len(x), len(y))
	}
	for name := range x {
		if !bytes.Equal(x[name], y[name]) {
			t.Errorf("%s of %s differs", name, step)
		}
	}
}

// What GPUs have saved goes on on the CPU, and the other way.
func TestCheckpointsMoveBetweenDevices(t *testing.T) {
	gpus(t, 1)
	for _, way := range [][2]string{{"cuda", "cpu"}, {"cpu", "cuda"}} {
		dir, _ := gpuRun(t, "llama", 1, "train.device="+way[0], "train.max_steps=20", "train.schedule=constant", "checkpoint.every=10")
		lines := gpuGoOn(t, dir, 1, "--resume", "train.device="+way[1], "train.max_steps=40", "train.schedule=constant")
		if len(lines) != 40 || !(lines[39]["loss"] < lines[19]["loss"]) {
			t.Errorf("%v: %d steps, losses %v and %v", way, len(lines), lines[19]["loss"], lines[len(lines)-1]["loss"])
		}
	}
}

// A text sampled on a GPU comes from the model's cache, and a trace names what ran.
func TestGPUSamplesAndTraces(t *testing.T) {
	gpus(t, 1)
	dir := t.TempDir()
	yaml := fmt.Sprintf(small, "llama")
	yaml = strings.NewReplacer("vocab: 509", "vocab: 256", "format: synthetic", "format: text, train: text.txt, eval_split: 0.1", "max_steps: 200", "max_steps: 40").Replace(yaml)
	if err := os.WriteFile(filepath.Join(dir, "train.yaml"), []byte(yaml), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "text.txt"), []byte(strings.Repeat("the quick brown fox jumps. ", 5000)), 0o666); err != nil {
		t.Fatal(err)
	}
	gpuGoOn(t, dir, 1, "train.device=cuda", "sample.every=40", "sample.tokens=40", "sample.temperature=0", "log.trace=2", "sample.prompt=the quick ")
	text, err := os.ReadFile(filepath.Join(dir, "out", "samples", "step-00000040.txt"))
	if err != nil || len(text) < 40 {
		t.Errorf("sampled %q, %v", text, err)
	}
	t.Logf("sampled %q", text)
	trace, err := os.ReadFile(filepath.Join(dir, "out", "trace.json"))
	if err != nil || !bytes.Contains(trace, []byte(`"attention backward"`)) || !bytes.Contains(trace, []byte(`"adamw"`)) {
		t.Errorf("the trace has %d bytes, %v", len(trace), err)
	}
}
