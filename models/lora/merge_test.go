package lora

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/kernels/cpu"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/internal/modeltest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// plain builds the model that adapters are put on.
func plain(of describe) modeltest.Build {
	return func(e models.Env) (models.Model, error) {
		s, err := of()
		if err != nil {
			return nil, err
		}
		return decoder.New(s, e)
	}
}

// values are a rig's weights by the names of their parts.
func values(r *modeltest.Rig) map[string][]float32 {
	all := map[string][]float32{}
	for _, p := range r.Model.Params() {
		w := r.Weights.Replica.Weight(p).F32()
		p.EachPart(func(part param.Part, from, to int) { all[part.Name] = w[from:to] })
	}
	return all
}

// Whole numbers below 2^24 are exact in f32, in whatever order they are added.
func TestMergeIsExact(t *testing.T) {
	const r, scale = 3, 2
	for _, shape := range [][2]int{{1, 1}, {4, 5}, {70, 3}, {2, 90}} {
		o, i := shape[0], shape[1]
		w, a, b := make([]float32, o*i), make([]float32, r*i), make([]float32, o*r)
		for _, x := range [][]float32{w, a, b} {
			for k := range x {
				x[k] = float32(k*37%101 - 50)
			}
		}
		want := slices.Clone(w)
		for y := range o {
			for x := range i {
				for k := range r {
					want[y*i+x] += scale * b[y*r+k] * a[k*i+x]
				}
			}
		}
		Merge(w, a, b, r, scale)
		if !slices.Equal(w, want) {
			t.Errorf("%v: merged %v, want %v", shape, w, want)
		}
	}
}

// A model into whose weights the adapters are merged is the adapted one.
func TestMergedModelIsTheAdaptedOne(t *testing.T) {
	for name, some := range map[string][]string{"llama": {"v_proj", "up_proj"}, "gpt2": {"c_attn"}} {
		of := families[name]
		for _, c := range []Config{{R: 4, Alpha: 6}, {R: 3, Targets: some}} {
			build, l := adapted(of, c, false)
			r, merged := modeltest.New(t, 2, 8, build), modeltest.New(t, 2, 8, plain(of))
			from, to := values(r), values(merged)
			for name, w := range to {
				copy(w, from[name])
				m := module(name)
				if a := from[m+endA]; a != nil && m != name {
					Merge(w, a, from[m+endB], c.R, (*l).scale())
				}
			}
			b := modeltest.RandomBatch(5, 2, 8, vocab)
			modeltest.Near(t, name+": loss", r.Forward(b, false), merged.Forward(b, false), 1e-6, 1)
			r.Reset(8)
			merged.Reset(8)
			tokens := b.Tokens.I32()[:8]
			modeltest.NearAll(t, name+": logits", r.Logits(tokens), merged.Logits(tokens), 1e-5)
		}
	}
}

// Adapters of full rank can be any change of the weights: with A the identity, B is it.
func TestFullRankIsAnyChange(t *testing.T) {
	const hidden = 12 // of the tiny GPT-2, and the inputs of all its layers but one
	build, _ := adapted(tinyGPT2, Config{R: hidden, Alpha: hidden, Targets: []string{"c_attn", "attn.c_proj", "c_fc"}}, false)
	r, changed := modeltest.New(t, 2, 8, build), modeltest.New(t, 2, 8, plain(tinyGPT2))
	from, to := values(r), values(changed)
	for name, w := range to {
		copy(w, from[name])
		b := from[module(name)+endB]
		if b == nil || module(name) == name {
			continue
		}
		for i, d := range b {
			w[i] += d
		}
		a := from[module(name)+endA]
		for i := range a {
			a[i] = 0
			if i/hidden == i%hidden {
				a[i] = 1
			}
		}
	}
	b := modeltest.RandomBatch(5, 2, 8, vocab)
	modeltest.Near(t, "loss", r.Forward(b, false), changed.Forward(b, false), 1e-6, 1)
}

// train makes AdamW steps on one batch and returns the losses, a target each.
func train(t *testing.T, r *modeltest.Rig, b models.Batch, steps int, lr float64) (losses []float64) {
	t.Helper()
	targets := 0
	for _, id := range b.Targets.I32() {
		if id >= 0 {
			targets++
		}
	}
	var slots []adamw.Slot
	alloc := func(n int) tensor.Tensor { return tensor.New(device.Of(make([]float32, n)), dtype.F32, n) }
	for _, p := range r.Model.Params() {
		if n := p.Numel(); !p.Frozen {
			w := r.Weights.Replica.Weight(p)
			slots = append(slots, adamw.Slot{W: w.Reshape(n), G: tensor.New(device.Of(r.Sink.Grad(p)), dtype.F32, n), M: alloc(n), V: alloc(n)})
		}
	}
	one := tensor.New(device.Of([]float64{1}), dtype.F64, 1)
	for i := range steps {
		r.Gradients(1/float32(targets), b)
		losses = append(losses, r.Loss/float64(targets))
		r.Env.Ops.(*cpu.Ops).AdamW(r.Env.Stream, slots, adamw.Hyper{LR: lr, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Step: i + 1, Scale: one})
		r.Wait()
	}
	return losses
}

// Training learns a batch by heart with few adapters, and the weights below them keep
// every bit.
func TestTrainingLeavesTheBaseAsItIs(t *testing.T) {
	for name, of := range families {
		build, l := adapted(of, Config{R: 8}, false)
		r := modeltest.New(t, 2, 8, build)
		for _, p := range (*l).Params() {
			r.Model.Init(p, 1, r.Weights.Replica.Weight(p).F32())
		}
		embedding := r.Weights.Replica.Weight(r.Model.Params()[0]).F32()
		for i := range embedding {
			embedding[i] *= 10 // it is the head too: large enough for any logits
		}
		before := map[string][]float32{}
		for name, w := range values(r) {
			before[name] = slices.Clone(w)
		}
		losses := train(t, r, modeltest.RandomBatch(5, 2, 8, vocab), 60, 2e-2)
		if first, last := losses[0], losses[len(losses)-1]; !(last < 0.1*first) {
			t.Errorf("%s: the loss goes from %.3f to %.3f", name, first, last)
		}
		changed := 0
		for part, w := range values(r) {
			if same := slices.Equal(w, before[part]); !same {
				changed++
				if m := module(part); m != part && !slices.Contains([]string{endA, endB}, part[max(0, len(part)-len(endA)):]) {
					t.Errorf("%s: training changed %s", name, part)
				}
			}
		}
		if want := 2 * len((*l).Modules); changed != want {
			t.Errorf("%s: %d tensors changed, want the %d of the adapters", name, changed, want)
		}
	}
}

// The memory that is planned is what the model holds, and dropout alone needs room for
// a layer's inputs.
func TestMemory(t *testing.T) {
	for _, dropout := range []float64{0, 0.1} {
		c := Config{R: 4, Dropout: dropout}
		build, _ := adapted(tinyGPT2, c, false)
		s, err := tinyGPT2()
		if err != nil {
			t.Fatal(err)
		}
		base, err := s.Plan(2, 8, device.CPU, models.KeepAll)
		if err != nil {
			t.Fatal(err)
		}
		if s, err = tinyGPT2(); err != nil {
			t.Fatal(err)
		}
		if _, err := Add(s, c); err != nil {
			t.Fatal(err)
		}
		p, err := s.Plan(2, 8, device.CPU, models.KeepAll)
		if err != nil {
			t.Fatal(err)
		}
		if got := modeltest.New(t, 2, 8, build).Model.Bytes(); got != p.Bytes() {
			t.Errorf("planned %d bytes, the model has %d", p.Bytes(), got)
		}
		up := func(n int) int64 { return int64((4*n + 255) / 256 * 256) }
		want := 2*up(48*4) + up(16*4)
		if dropout > 0 {
			want += up(16 * 48)
		}
		if got := p.Bytes() - base.Bytes(); got != want {
			t.Errorf("dropout %v: adapters take %d bytes of scratch memory, want %d", dropout, got, want)
		}
	}
}

func ExampleMerge() {
	w := []float32{1, 0, 0, 1} // the identity
	Merge(w, []float32{1, 2}, []float32{3, 4}, 1, 2)
	fmt.Println(w)
	// Output: [7 12 8 17]
}
