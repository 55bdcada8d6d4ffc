package lora

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/hf"
	"github.com/gorun-dev/gorun/models/internal/modeltest"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// onFolder is a rig of a folder's model, with the adapters of c where c is given.
func onFolder(t *testing.T, f *hf.Folder, c *Config) (*modeltest.Rig, *Adapters) {
	t.Helper()
	var l *Adapters
	r := modeltest.New(t, 1, 16, func(e models.Env) (models.Model, error) {
		s, err := f.Describe()
		if err != nil {
			return nil, err
		}
		if c != nil {
			if l, err = Add(s, *c); err != nil {
				return nil, err
			}
		}
		return decoder.New(s, e)
	})
	var base []*param.Param
	for _, p := range r.Model.Params() {
		if l == nil || !slices.Contains(l.Params(), p) {
			base = append(base, p)
		}
	}
	if err := f.Load(base, set(r)); err != nil {
		t.Fatal(err)
	}
	return r, l
}

// set gives a rig's weights their values.
func set(r *modeltest.Rig) func(p *param.Param, values []float32) error {
	return func(p *param.Param, values []float32) error {
		copy(r.Weights.Replica.Weight(p).F32(), values)
		return nil
	}
}

// PEFT's model with our adapters computes what ours does, merges them into the same
// weights, and writes adapters with which ours computes what its own does.
func TestPEFTAgrees(t *testing.T) {
	python := testenv.Python(t, "torch", "transformers", "peft")
	for _, name := range []string{"tiny-qwen2-synthetic", "tiny-random-gpt2"} {
		t.Run(name, func(t *testing.T) {
			model := testenv.Data(t, name)
			f, err := hf.Open(model, dtype.F32)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			r, l := onFolder(t, f, &Config{R: 4, Alpha: 6, Dropout: 0.1})
			ours := save(t, l, Base{Path: model, Transposed: f.Arch == "gpt2"}, r)
			theirs := filepath.Join(t.TempDir(), "theirs")

			ids := []int32{3, 14, 15, 92, 65, 35, 89, 79}
			text, err := json.Marshal(ids)
			if err != nil {
				t.Fatal(err)
			}
			out := testenv.RunPython(t, python, bytes.NewReader(text), filepath.Join("testdata", "compare.py"), model, ours, theirs)
			var figures struct {
				Ours, Merged, Theirs []float64
				Modules              []string
			}
			if err := json.Unmarshal(out, &figures); err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			if want := slices.Sorted(slices.Values(l.Modules)); !slices.Equal(figures.Modules, want) {
				t.Errorf("PEFT has adapters on %v, want %v", figures.Modules, want)
			}
			compare := func(what string, r *modeltest.Rig, want []float64) {
				t.Helper()
				r.Reset(len(ids))
				single := make([]float32, len(want))
				for i, v := range want {
					single[i] = float32(v)
				}
				modeltest.NearAll(t, what, r.Logits(ids), single, 2e-5) // f32 on both sides
			}
			compare("our adapters in PEFT", r, figures.Ours)
			compare("merged by PEFT", r, figures.Merged)

			merged, _ := onFolder(t, f, nil)
			saved := open(t, ours)
			if err := f.Load(merged.Model.Params(), saved.Merged(set(merged))); err != nil {
				t.Fatal(err)
			}
			compare("merged by us", merged, figures.Merged)

			written := open(t, theirs)
			if c := written.Config; c.R != 3 || c.Alpha != 5 || c.Dropout != 0.1 {
				t.Errorf("PEFT's settings are read as %+v", c)
			}
			if err := written.Fits(f.Spec()); err != nil {
				t.Fatal(err)
			}
			again, l := onFolder(t, f, &written.Config)
			if err := written.Load(l, set(again)); err != nil {
				t.Fatal(err)
			}
			compare("PEFT's adapters in ours", again, figures.Theirs)
		})
	}
}
