package train

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/runtime/checkpoint"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/safetensors"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// files is what j's checkpoint would hold now.
func (j *job) files(t *testing.T) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, f := range j.contents() {
		for _, x := range f.pieces {
			var b bytes.Buffer
			if err := j.download(t.Context(), &b, x); err != nil {
				t.Error(err)
			}
			out[x.name] = b.Bytes()
		}
	}
	return out
}

// opened hands a job of one rank with these settings to f, once it is built and has
// its first values.
func opened(t *testing.T, text string, f func(j *job)) error {
	t.Helper()
	cfg, err := config.Parse("test.yaml", []byte(text), []string{"comm.timeout=1m"})
	if err != nil {
		t.Fatal(err)
	}
	_, errs := onRanks(t, 1, nil, func(g *comm.Group, out *status.Writer) error {
		j := &job{cfg: cfg, out: out}
		defer j.close()
		err := j.open(t.Context(), place{ranks: 1}, joining(g))
		if err == nil {
			f(j)
		}
		return err
	})
	return errs[0]
}

// The weights that a checkpoint holds of a model's folder are the folder's, name by
// name, and the moments have the same names behind m. and v.
func TestACheckpointHasHuggingFacesNames(t *testing.T) {
	for _, folder := range []string{"stories260K", "tiny-qwen2-synthetic", "tiny-random-gpt2"} {
		t.Run(folder, func(t *testing.T) {
			dir := testenv.Data(t, folder)
			out := t.TempDir()
			err := opened(t, fmt.Sprintf(`
model: {path: %q}
data: {format: synthetic, seq_len: 16}
train: {max_steps: 1, micro_batch: 1, threads: 1}
output: %q
`, dir, out), func(j *job) {
				if err := j.save(t.Context(), true); err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := safetensors.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer theirs.Close()
			got := weights(t, out, 0)
			names := theirs.Names()
			if len(got) != 3*len(names) {
				t.Errorf("%d tensors in the checkpoint, 3 times %d in the folder", len(got), len(names))
			}
			for _, name := range names {
				info, want, err := theirs.Tensor(name)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(folder, "gpt2") && len(info.Shape) == 2 && strings.HasPrefix(name, "transformer.h.") {
					want = turned(want, info.Shape[0], info.Shape[1])
				}
				if !bytes.Equal(got[name], want) {
					t.Errorf("%s: %d bytes in the checkpoint that are not the folder's %d", name, len(got[name]), len(want))
				}
				for _, moment := range []string{"m.", "v."} {
					if b, ok := got[moment+name]; !ok || !bytes.Equal(b, make([]byte, len(want))) {
						t.Errorf("%s%s: %d bytes, want %d zeros", moment, name, len(b), len(want))
					}
				}
			}
		})
	}
}

// turned is the transpose of f32 [rows,cols].
func turned(b []byte, rows, cols int) []byte {
	out := make([]byte, len(b))
	for r := range rows {
		for c := range cols {
			copy(out[4*(c*rows+r):][:4], b[4*(r*cols+c):])
		}
	}
	return out
}

// What a job resumes from is what was written, bit by bit: weights and moments, of
// merged parameters, of a tied embedding, and of GPT-2.
func TestACheckpointIsReadAsItWasWritten(t *testing.T) {
	for name, model := range map[string]string{
		"llama":      "{arch: llama, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 64}",
		"qwen2 tied": "{arch: qwen2, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 64, qkv_bias: true, tie_embeddings: true}",
		"qwen3":      "{arch: qwen3, layers: 2, hidden: 32, heads: 4, kv_heads: 2, head_dim: 12, vocab: 64}",
		"gpt2":       "{arch: gpt2, layers: 2, hidden: 32, heads: 4, vocab: 64, tie_embeddings: true}",
	} {
		t.Run(name, func(t *testing.T) {
			out := t.TempDir()
			text := func(resume string) string {
				return fmt.Sprintf(`
model: %s
data: {format: synthetic, seq_len: 16}
train: {max_steps: 3, micro_batch: 2, lr: 1e-2, warmup_steps: 1, threads: 1}
checkpoint: {resume: %q}
output: %q
`, model, resume, out)
			}
			var written, order string
			err := opened(t, text("none"), func(j *job) {
				if err := j.train(t.Context()); err != nil {
					t.Error(err)
				}
				written, order = fmt.Sprint(j.files(t)), fmt.Sprint(j.keeper.Order())
			})
			if err != nil {
				t.Fatal(err)
			}
			for name, b := range weights(t, out, 3) {
				if strings.Contains(name, "gate_up_proj") || strings.Contains(name, "qkv_proj") {
					t.Errorf("%s is not Hugging Face's name", name)
				}
				if (strings.HasPrefix(name, "m.") || strings.HasPrefix(name, "v.")) && strings.HasSuffix(name, "weight") && !differs(b) {
					t.Errorf("%s is constant after three steps: it shows nothing", name)
				}
			}
			err = opened(t, text("auto"), func(j *job) {
				if got := fmt.Sprint(j.files(t)); got != written {
					t.Error("the files written after the resume are not those read")
				}
				if got := fmt.Sprint(j.keeper.Order()); got != order {
					t.Errorf("order of buckets %s, was %s", got, order)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// differs reports whether the f32 values are not all the same.
func differs(b []byte) bool {
	first := math.Float32frombits(binary.LittleEndian.Uint32(b))
	for i := 4; i < len(b); i += 4 {
		if math.Float32frombits(binary.LittleEndian.Uint32(b[i:])) != first {
			return true
		}
	}
	return false
}

// A checkpoint must hold the model's tensors, all of them and no others: not one merged
// tensor in place of its parts, nor a part of a larger model.
func TestACheckpointOfOtherTensorsIsRefused(t *testing.T) {
	j := &job{}
	holding := func(names ...string) []file {
		f := file{kind: weightsKind}
		for i, name := range names {
			x, err := tensor.Alloc(device.NewCPU(), dtype.F32, 2)
			if err != nil {
				t.Fatal(err)
			}
			x.F32()[0] = float32(i + 1)
			all := elements{0, 2}
			f.pieces = append(f.pieces, piece{name: name, shape: x.Shape, has: all, writes: all, store: inMemory{j, x}})
		}
		return []file{f}
	}
	values := func(f []file, i int) float32 { return f[0].pieces[i].store.(inMemory).F32()[0] }
	d, err := checkpoint.Begin(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Discard()
	var list []safetensors.Tensor
	for _, x := range holding("q", "k")[0].pieces {
		list = append(list, x.tensor(safetensors.Bytes(x.store.(inMemory).Buf.Bytes())))
	}
	// One without an index, as it was written before there were pieces.
	if err := d.WriteFile("model.safetensors", func(w io.Writer) error { return safetensors.Encode(w, list, nil) }); err != nil {
		t.Fatal(err)
	}
	c, err := d.Publish(state{})
	if err != nil {
		t.Fatal(err)
	}
	from, err := c.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	got := holding("k", "q")
	if err := load(t.Context(), from, got); err != nil || values(got, 0) != 2 || values(got, 1) != 1 {
		t.Errorf("the same tensors in another order: %v, %v", err, got)
	}
	other := holding("q", "k")
	other[0].pieces[1].shape = []int{1, 2}
	for want, f := range map[string][]file{
		"k is no tensor": holding("q"), `no tensor "v"`: holding("q", "k", "v"), `no tensor "qk"`: holding("qk"), "k is F32[2], the model has f32[1 2]": other,
	} {
		if err := load(t.Context(), from, f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// A run that rounds otherwise than the checkpoint's says so, and no other.
func TestResumingWithOtherRoundingIsSaid(t *testing.T) {
	out := t.TempDir()
	backend := func(sets ...string) (name, said string) {
		said, errs := trainChanged(t, 1, func(j *job) { name = j.backend }, nil, append(sets, "output="+out)...)
		if errs[0] != nil {
			t.Fatal(errs[0])
		}
		return name, said
	}
	const rounding = "agree up to rounding"
	was, _ := backend()
	if _, said := backend("checkpoint.resume=auto"); strings.Contains(said, rounding) {
		t.Errorf("the same job said %s", said)
	}
	now, said := backend("checkpoint.resume=auto", "train.matmul=gonum")
	if differs := was != now; differs != strings.Contains(said, rounding) || differs && !(strings.Contains(said, was) && strings.Contains(said, now)) {
		t.Errorf("written with %q, now %q, said %s", was, now, said)
	}
}

// The order of an older checkpoint names each tensor, also where a product merges
// several now.
func TestTheOrderOfBucketsIsByTensors(t *testing.T) {
	params := []*param.Param{
		{Name: "embed", Shape: []int{4, 2}},
		{Name: "qkv", Shape: []int{6, 2}, Parts: []param.Part{{Name: "q", Rows: 4}, {Name: "k", Rows: 1}, {Name: "v", Rows: 1}}},
		{Name: "out", Shape: []int{2, 2}},
	}
	for _, x := range []struct{ tensors, order, again []string }{
		{[]string{"out", "q", "k", "v", "embed"}, []string{"out", "qkv", "embed"}, []string{"out", "q", "k", "v", "embed"}},
		{[]string{"v", "out", "k", "q", "embed"}, []string{"qkv", "out", "embed"}, []string{"q", "k", "v", "out", "embed"}},
	} {
		order, err := paramOrder(params, x.tensors)
		if err != nil || !slices.Equal(order, x.order) {
			t.Errorf("%v: order %v (%v), want %v", x.tensors, order, err, x.order)
		}
		if again := tensorOrder(params, order); !slices.Equal(again, x.again) {
			t.Errorf("%v: tensors %v, want %v", order, again, x.again)
		}
	}
	if _, err := paramOrder(params, []string{"out", "gate"}); err == nil || !strings.Contains(err.Error(), "gate") {
		t.Errorf("an unknown name: %v", err)
	}
}
