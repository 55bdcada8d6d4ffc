package data_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/data"
	"github.com/gorun-dev/gorun/models/internal/modeltest"
	"github.com/gorun-dev/gorun/models/llama"
	"github.com/gorun-dev/gorun/models/tokenizer"
)

// bytes has a zero byte around each text.
type bytes struct{ tokenizer.Bytes }

func (bytes) Around() (before, after []int32) { return []int32{0}, []int32{0} }

// batches reads all sequences of d, b at a time, the last filled up with empty ones.
func batches(t *testing.T, d data.Dataset, b int) (all []models.Batch, targets int) {
	t.Helper()
	e, err := data.NewEvaluation(d, 0, data.Share{World: 1, MicroBatch: b})
	if err != nil {
		t.Fatal(err)
	}
	n := b * d.SeqLen()
	for m := range e.Batches() {
		tokens, goals, docs := make([]int32, n), make([]int32, n), make([]int32, n)
		counted, err := e.Read(m, tokens, goals)
		if err != nil {
			t.Fatal(err)
		}
		x := modeltest.Batch(b, d.SeqLen(), tokens, goals)
		if e.Docs(m, docs) {
			x.Docs = models.Ints(docs)
		}
		all, targets = append(all, x), targets+counted
	}
	return all, targets
}

// Packed samples have the losses and the gradients of the same samples alone:
// nothing is seen, and nothing is learned, across their bounds.
func TestPackedLossIsTheSumOfSeparateLosses(t *testing.T) {
	const seqLen, b = 48, 3
	var file strings.Builder
	r := models.NewRand(1, "rows")
	for i := range uint64(40) {
		row, err := json.Marshal(map[string]string{
			"prompt": strings.Repeat("ab", int(r.Uint64(2*i)%6)), "completion": strings.Repeat(fmt.Sprint(i), 1+int(r.Uint64(2*i+1)%8)),
		})
		if err != nil {
			t.Fatal(err)
		}
		file.Write(append(row, '\n'))
	}
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	if err := os.WriteFile(path, []byte(file.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	sets := map[bool]data.Dataset{}
	for _, packing := range []bool{false, true} {
		s, err := data.Open(t.Context(), data.Options{
			Train: []string{path}, Format: "prompt_completion", SeqLen: seqLen, Packing: packing, Vocab: 256,
			Encoding: data.Encoding{Tokenizer: bytes{}}, Cache: t.TempDir(),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		sets[packing] = s.Train
	}
	single, targets := batches(t, sets[false], b)
	packed, same := batches(t, sets[true], b)
	if len(packed) >= len(single)/2 || targets != same {
		t.Fatalf("%d batches with %d targets, packed %d with %d", len(single), targets, len(packed), same)
	}
	rig := modeltest.New(t, b, seqLen, func(e models.Env) (models.Model, error) {
		return llama.New(llama.Config{Vocab: 256, Hidden: 16, Layers: 2, Heads: 2, KVHeads: 1, FFN: 24, MaxPositions: seqLen, RopeTheta: 100, NormEps: 1e-5}, e)
	})
	scale := 1 / float32(targets)
	want := rig.Gradients(scale, single...)
	loss := rig.Loss
	for name, g := range rig.Gradients(scale, packed...) {
		// f32 sums in another order.
		modeltest.NearAll(t, name, g, want[name], 5e-5)
	}
	modeltest.Near(t, "loss", rig.Loss, loss, 1e-6, 1)

	// Without the bounds it is another loss.
	for i := range packed {
		packed[i].Docs = models.Batch{}.Docs
	}
	rig.Gradients(scale, packed...)
	if math.Abs(rig.Loss-loss) < 1e-4*loss {
		t.Errorf("attention across the bounds changes nothing: %v and %v", rig.Loss, loss)
	}
}
