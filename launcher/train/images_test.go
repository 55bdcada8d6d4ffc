package train

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/gorgonia/mnist"
	"github.com/gorun-dev/gorun/models/gorgonia/mnist/mnisttest"
)

const imagesBase = `
seed: 7
model: {arch: gorgonia-mlp, hidden: 24}
data: {train: none, format: mnist}
train: {max_steps: 6, micro_batch: 12, lr: 1e-2, threads: 1}
eval: {every: 3}
checkpoint: {every: 3, keep: 0}
comm: {timeout: 1m}
log: {plot: false, tensorboard: false}
`

// drawn writes a folder of images that can be told apart: each class is a bar at a
// height of its own, and the rest is noise.
func drawn(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for part, n := range map[string]int{"train": 300, "t10k": 70} {
		noise := models.NewRand(3, part)
		images := binary.BigEndian.AppendUint32([]byte{0, 0, 8, 3}, uint32(n))
		for range 2 {
			images = binary.BigEndian.AppendUint32(images, mnist.Side)
		}
		labels := binary.BigEndian.AppendUint32([]byte{0, 0, 8, 1}, uint32(n))
		for i := range n {
			label := i % mnist.Classes
			labels = append(labels, byte(label))
			for at := range mnist.Pixels {
				v := byte(noise.Uint64(uint64(i*mnist.Pixels+at)) % 100)
				if row := at / mnist.Side; row == 4+2*label || row == 5+2*label {
					v += 100
				}
				images = append(images, v)
			}
		}
		for name, b := range map[string][]byte{"images-idx3": images, "labels-idx1": labels} {
			if err := os.WriteFile(filepath.Join(dir, part+"-"+name+"-ubyte"), b, 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// trainImages runs a job of n ranks on the images in folder.
func trainImages(t *testing.T, n int, folder, output string, sets ...string) string {
	t.Helper()
	cfg, err := config.Parse("images.yaml", []byte(imagesBase), append([]string{"data.train=" + folder, "output=" + output}, sets...))
	if err != nil {
		t.Fatal(err)
	}
	return trainAll(t, n, cfg)
}

func trainAll(t *testing.T, n int, cfg *config.Config) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	said, errs := onRanks(t, n, nil, func(g *comm.Group, out *status.Writer) error {
		return run(ctx, cfg, out, place{ranks: n, world: n}, joining(g))
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%d ranks: %v", n, err)
	}
	return said
}

// floats is the tensors of a checkpoint as numbers.
func floats(t *testing.T, output string, step int) map[string][]float64 {
	out := map[string][]float64{}
	for name, b := range weights(t, output, step) {
		for ; len(b) > 0; b = b[4:] {
			out[name] = append(out[name], float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
		}
	}
	return out
}

// The same images in the same order train the same classifier, however many ranks,
// micro-steps and strategies share them: to the rounding of sums.
func TestClassifiersAreTheSameOnAnyNumberOfRanks(t *testing.T) {
	folder := drawn(t)
	for _, arch := range []string{"gorgonia-mlp", "gorgonia-convnet"} {
		t.Run(arch, func(t *testing.T) {
			output := t.TempDir()
			trainImages(t, 1, folder, output, "model.arch="+arch)
			want := floats(t, output, 6)
			steps := readSteps(t, output)
			for _, x := range []struct {
				n    int
				sets []string
			}{
				{2, []string{"train.micro_batch=6"}},
				{3, []string{"train.micro_batch=2", "train.grad_accum=2"}},
				{4, []string{"train.micro_batch=3"}},
				{2, []string{"train.micro_batch=6", "parallel.strategy=zero2"}},
				{2, []string{"train.micro_batch=6", "parallel.strategy=zero3"}},
			} {
				if arch == "gorgonia-convnet" && x.n != 2 {
					continue
				}
				t.Run(fmt.Sprint(x.n, x.sets), func(t *testing.T) {
					output := t.TempDir()
					trainImages(t, x.n, folder, output, append(x.sets, "model.arch="+arch)...)
					for i, s := range readSteps(t, output) {
						if a, b := float64(s.GradNorm), float64(steps[i].GradNorm); !(math.Abs(a-b) <= 1e-4*b) {
							t.Errorf("step %d: the norm of the gradients is %v, of one rank %v", s.Step, a, b)
						}
					}
					got := floats(t, output, 6)
					if len(got) != len(want) {
						t.Fatalf("%d tensors, want %d", len(got), len(want))
					}
					for name, w := range want {
						var off, norm float64
						for i, v := range w {
							off += (got[name][i] - v) * (got[name][i] - v)
							norm += v * v
						}
						// Adam divides by the root of a second moment that begins near zero, and
						// makes rounding large there.
						if !(math.Sqrt(off) <= 1e-3*math.Sqrt(norm)) {
							t.Errorf("%s is %.2g apart", name, math.Sqrt(off/norm))
						}
					}
				})
			}
		})
	}
}

// A job that is interrupted and resumed leaves the bits of one that is not, and its
// evaluations tell how many images are right.
func TestClassifiersResume(t *testing.T) {
	folder, whole, parts := drawn(t), t.TempDir(), t.TempDir()
	said := trainImages(t, 2, folder, whole, "train.max_steps=30", "train.schedule=constant", "eval.every=10", "checkpoint.every=10")
	trainImages(t, 2, folder, parts, "train.max_steps=10", "train.schedule=constant", "eval.every=10", "checkpoint.every=10")
	trainImages(t, 2, folder, parts, "train.max_steps=30", "train.schedule=constant", "eval.every=10", "checkpoint.every=10", "checkpoint.resume=auto")
	sameWeights(t, "resumed at step 10", weights(t, whole, 30), weights(t, parts, 30))

	end := readEnd(t, whole)
	if end.Accuracy == nil || *end.Accuracy < 0.95 {
		t.Errorf("the accuracy at the end is %v: bars of ten heights are easy", end.Accuracy)
	}
	if end.Tokens != 30*24 {
		t.Errorf("%d targets were learned, want one for each of 720 images", end.Tokens)
	}
	var lines int
	text, err := os.ReadFile(filepath.Join(whole, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var r struct {
			Event    string
			Accuracy *float64 `json:"val_accuracy"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		if r.Accuracy != nil && r.Event == "" {
			lines++
			if hits := *r.Accuracy * 70; math.Abs(hits-math.Round(hits)) > 1e-9 {
				t.Errorf("an accuracy of %v is no share of 70 images", *r.Accuracy)
			}
		}
	}
	if lines != 3 {
		t.Errorf("%d evaluations, want 3", lines)
	}
	for _, want := range []string{"gorgonia-mlp, 19090 parameters", "data: 300 images", "a step: 24 images", "% of the images right", "nats an image", "images/s"} {
		if !strings.Contains(said, want) {
			t.Errorf("the console does not say %q:\n%s", want, said)
		}
	}
}

func TestAPlanOfAClassifier(t *testing.T) {
	cfg, err := config.Parse("images.yaml", []byte(imagesBase), []string{"data.train=" + drawn(t), "model.arch=gorgonia-convnet"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := Plan(cfg, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"gorgonia-convnet, 9818 parameters", "24 images", "Gorgonia computes in host memory", "values of Gorgonia's two graphs", "bucket plan"} {
		if !strings.Contains(text, want) {
			t.Errorf("the plan does not say %q:\n%s", want, text)
		}
	}
	if WantsGPUs(cfg) {
		t.Error("a classifier wants GPUs")
	}
}

// MNIST for a hundred steps: far from the end of training, and well beyond chance.
func TestMNISTIsLearned(t *testing.T) {
	folder, output := mnisttest.Part(t, 6400, 1000), t.TempDir()
	trainImages(t, 2, folder, output, "model.hidden=64", "train.micro_batch=32", "train.max_steps=100", "train.lr=5e-3", "eval.every=100", "checkpoint.every=0")
	if end := readEnd(t, output); end.Accuracy == nil || *end.Accuracy < 0.85 { // 0.9 or so
		t.Errorf("%v of the test images are right, want 0.85 or more", end.Accuracy)
	}
}

// The files in configs/ keep what they promise. It takes minutes: .ci/soak runs it.
func TestMNISTInFull(t *testing.T) {
	if os.Getenv("GORUN_SOAK") == "" {
		t.Skip("takes minutes: GORUN_SOAK=1 runs it; .ci/soak does")
	}
	folder := mnisttest.Folder(t)
	for file, want := range map[string]float64{"mnist-mlp.yaml": 0.975, "mnist-convnet.yaml": 0.985} {
		t.Run(file, func(t *testing.T) {
			output := t.TempDir()
			cfg, err := config.Load(filepath.Join("..", "..", "configs", file), []string{"data.train=" + folder, "output=" + output})
			if err != nil {
				t.Fatal(err)
			}
			trainAll(t, 2, cfg)
			end := readEnd(t, output)
			if end.Accuracy == nil || float64(*end.Accuracy) < want {
				t.Fatalf("%v of the test images are right, want %g or more", end.Accuracy, want)
			}
			t.Logf("%.2f %% of the test images are right, after %.0f s", 100**end.Accuracy, end.Seconds)
		})
	}
}
