package lora

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/gpt2"
	"github.com/gorun-dev/gorun/models/internal/modeltest"
	"github.com/gorun-dev/gorun/models/llama"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

const vocab = 29

// tinyLlama merges projections, has biases on some, and layers of different widths.
func tinyLlama() (*decoder.Spec, error) {
	return llama.Describe(llama.Config{Vocab: vocab, Hidden: 20, Layers: 3, Heads: 6, KVHeads: 2, HeadDim: 4, FFN: 27,
		MaxPositions: 16, RopeTheta: 100, NormEps: 1e-5, QKVBias: true, Tied: true})
}

// tinyQwen3 has norms between the merged projections and attention.
func tinyQwen3() (*decoder.Spec, error) {
	return llama.Describe(llama.Config{Vocab: vocab, Hidden: 20, Layers: 3, Heads: 6, KVHeads: 2, HeadDim: 4, FFN: 27,
		MaxPositions: 16, RopeTheta: 100, NormEps: 1e-5, QKNorm: true, Tied: true})
}

func tinyGPT2() (*decoder.Spec, error) {
	return gpt2.Describe(gpt2.Config{Vocab: vocab, Hidden: 12, Layers: 2, Heads: 3, MaxPositions: 16, NormEps: 1e-5, Tied: true})
}

type describe func() (*decoder.Spec, error)

var families = map[string]describe{"llama": tinyLlama, "qwen3": tinyQwen3, "gpt2": tinyGPT2}

// adapted builds a model with adapters. all leaves no parameter frozen.
func adapted(of describe, c Config, all bool) (modeltest.Build, **Adapters) {
	var l *Adapters
	return func(e models.Env) (models.Model, error) {
		s, err := of()
		if err != nil {
			return nil, err
		}
		if l, err = Add(s, c); err != nil {
			return nil, err
		}
		for _, p := range s.Params() {
			p.Frozen = p.Frozen && !all
		}
		return decoder.New(s, e)
	}, &l
}

// Everything that holds of a model holds of one with adapters that trains all of its
// parameters: gradients are slopes, micro-steps add up, recomputing changes no bit,
// any parameters may be frozen.
func TestAdaptedModel(t *testing.T) {
	for _, c := range []struct {
		family string
		Config
	}{
		{"llama", Config{R: 3, Alpha: 5}},
		{"llama", Config{R: 2, Targets: []string{"v_proj", "q_proj", "down_proj"}}},
		{"llama", Config{R: 1, Targets: []string{"up_proj", "layers.1.self_attn.o_proj"}}},
		{"qwen3", Config{R: 3, Alpha: 5}},
		{"gpt2", Config{R: 4, Targets: []string{"all-linear"}}},
		{"gpt2", Config{R: 2, Targets: []string{"attn.c_proj", "c_attn"}}},
	} {
		t.Run(fmt.Sprintf("%s %v", c.family, c.Targets), func(t *testing.T) {
			build, _ := adapted(families[c.family], c.Config, true)
			modeltest.Checks(t, vocab, true, build)
		})
	}
}

// Adapters are named, shaped and placed as PEFT's are, behind the layers they are on.
func TestParams(t *testing.T) {
	s, err := tinyLlama()
	if err != nil {
		t.Fatal(err)
	}
	l, err := Add(s, Config{R: 3, Targets: []string{"q_proj", "v_proj", "mlp.down_proj"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, p := range s.Params() {
		if p.Frozen {
			continue
		}
		p.EachPart(func(part param.Part, from, to int) {
			got = append(got, fmt.Sprintf("%s [%d,%d] behind %s", part.Name, part.Rows, p.Shape[1], s.Params()[i-1].Name))
		})
		if p.NoDecay {
			t.Errorf("%s is not decayed", p.Name)
		}
		if len(got) == 6 {
			break
		}
	}
	const layer = "model.layers.0."
	want := []string{
		layer + "self_attn.q_proj.lora_A.weight [3,20] behind " + layer + "self_attn.qkv_proj.bias",
		layer + "self_attn.v_proj.lora_A.weight [3,20] behind " + layer + "self_attn.qkv_proj.bias",
		layer + "self_attn.q_proj.lora_B.weight [24,3] behind " + layer + "self_attn.qkv_proj.lora_A.weight",
		layer + "self_attn.v_proj.lora_B.weight [8,3] behind " + layer + "self_attn.qkv_proj.lora_A.weight",
		layer + "mlp.down_proj.lora_A.weight [3,27] behind " + layer + "mlp.down_proj.weight",
		layer + "mlp.down_proj.lora_B.weight [20,3] behind " + layer + "mlp.down_proj.lora_A.weight",
	}
	if !slices.Equal(got, want) {
		t.Errorf("adapters\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(l.Modules) != 9 || len(l.Params()) != 12 {
		t.Errorf("adapters on %v, of %d parameters", l.Modules, len(l.Params()))
	}
	if text := l.String(); text != "rank 3, alpha 6, on 9 layers: mlp.down_proj, q_proj, v_proj" {
		t.Errorf("they are %s", text)
	}
	trained := 0
	for _, p := range s.Params() {
		if !p.Frozen {
			trained += p.Numel()
		}
	}
	if want := 3 * (3*(20+24) + 3*(20+8) + 3*(27+20)); trained != want {
		t.Errorf("%d elements are trained, want %d", trained, want)
	}
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	for _, c := range []struct {
		family string
		Config
		says []string
	}{
		{"llama", Config{R: 2, Targets: []string{"q_proj", "qproj"}}, []string{`"qproj"`, "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, and all"}},
		{"llama", Config{R: 2, Targets: []string{"lm_head"}}, []string{`"lm_head"`}},
		{"llama", Config{R: 2, Targets: []string{"qkv_proj"}}, []string{`"qkv_proj"`}},
		{"llama", Config{R: 2, Targets: []string{"proj"}}, []string{`"proj"`}},
		{"gpt2", Config{R: 2, Targets: []string{"q_proj"}}, []string{"c_attn, c_proj, c_fc, and all"}},
		{"gpt2", Config{R: 0}, []string{"rank of 0"}},
		{"gpt2", Config{R: 1, Alpha: -1}, []string{"alpha of -1"}},
		{"gpt2", Config{R: 1, Dropout: 1}, []string{"dropout of 1"}},
	} {
		s, err := families[c.family]()
		if err != nil {
			t.Fatal(err)
		}
		_, err = Add(s, c.Config)
		for _, says := range c.says {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%+v: error %v, want one with %s", c.Config, err, says)
			}
		}
		if slices.ContainsFunc(s.Params(), func(p *param.Param) bool { return p.Frozen }) {
			t.Errorf("%+v: the model was changed", c.Config)
		}
	}
}

// New adapters leave the model's logits as they were, bit by bit: B is zero. A is
// uniform between the bounds that PEFT draws between, and each layer's is its own.
func TestFirstValues(t *testing.T) {
	for name, of := range families {
		build, l := adapted(of, Config{R: 5, Seed: 3}, false)
		plain := modeltest.New(t, 1, 8, func(e models.Env) (models.Model, error) {
			s, err := of()
			if err != nil {
				return nil, err
			}
			return decoder.New(s, e)
		})
		r := modeltest.New(t, 1, 8, build)
		byName := map[string]*param.Param{}
		for _, p := range plain.Model.Params() {
			byName[p.Name] = p
		}
		first := map[string][]float32{}
		for _, p := range r.Model.Params() {
			w := r.Weights.Replica.Weight(p).F32()
			if base := byName[p.Name]; base != nil {
				copy(w, plain.Weights.Replica.Weight(base).F32())
				continue
			}
			r.Model.Init(p, 7, w)
			p.EachPart(func(part param.Part, from, to int) { first[part.Name] = slices.Clone(w[from:to]) })
		}
		tokens := []int32{3, 1, 4, 1, 5}
		plain.Reset(8)
		r.Reset(8)
		if got, want := r.Logits(tokens), plain.Logits(tokens); !slices.Equal(got, want) {
			t.Errorf("%s: new adapters change the logits", name)
		}
		if len(first) != 2*len((*l).Modules) {
			t.Errorf("%s: %d factors of %d layers", name, len(first), len((*l).Modules))
		}
		for name, w := range first {
			bound := float32(0)
			if strings.HasSuffix(name, endA) {
				bound = float32(1 / math.Sqrt(float64(len(w)/5))) // 1/sqrt(I)
			}
			if lo, hi := slices.Min(w), slices.Max(w); lo < -bound || hi > bound || hi < 0.75*bound || lo > -0.75*bound {
				t.Errorf("%s lies between %v and %v, want all of ±%v", name, lo, hi, bound)
			}
			for other, v := range first {
				if name < other && bound > 0 && slices.Equal(w[:8], v[:8]) {
					t.Errorf("%s and %s begin alike", name, other)
				}
			}
		}
	}
}

// counting counts what a backward pass computes.
type counting struct {
	models.Ops
	rows                map[int]int // products for gradients of weights, by O of dw[O,I]
	products, attention int         // for gradients of activations
}

func (c *counting) LinearBackwardW(s device.Stream, dw, dy, x tensor.Tensor, add bool) {
	c.rows[dw.Shape[0]]++
	c.Ops.LinearBackwardW(s, dw, dy, x, add)
}

func (c *counting) LinearBackwardX(s device.Stream, dx, dy, w tensor.Tensor, add bool) {
	c.products++
	c.Ops.LinearBackwardX(s, dx, dy, w, add)
}

func (c *counting) AttentionBackward(s device.Stream, dqkv, do, o, lse, qkv, docs tensor.Tensor) {
	c.attention++
	c.Ops.AttentionBackward(s, dqkv, do, o, lse, qkv, docs)
}

// A backward pass computes no gradient of a frozen weight, and nothing below the
// lowest adapter.
func TestFrozenWeightsCostNothing(t *testing.T) {
	build, l := adapted(tinyLlama, Config{R: 3, Targets: []string{"layers.1.mlp.down_proj", "layers.2.self_attn.q_proj"}}, false)
	count := &counting{rows: map[int]int{}}
	r := modeltest.New(t, 2, 5, func(e models.Env) (models.Model, error) {
		count.Ops, e.Ops = e.Ops, count
		return build(e)
	})
	grads := r.Gradients(1, modeltest.RandomBatch(1, 2, 5, vocab))
	r.Sink.AllReady()
	if len(grads) != 4 || len((*l).Modules) != 2 {
		t.Errorf("gradients of %d tensors, adapters on %v", len(grads), (*l).Modules)
	}
	// A of both, B of q_proj within the 40 rows of the product of q, k and v, and B of down_proj.
	if want := map[int]int{3: 2, 40: 1, 20: 1}; fmt.Sprint(count.rows) != fmt.Sprint(want) {
		t.Errorf("products for gradients by their rows: %v, want %v", count.rows, want)
	}
	// Those of the head, of the last layer's four products and of its adapter's two
	// factors, and of one factor of the adapter below, on the layer's last product.
	if count.products != 1+4+2+1 || count.attention != 1 {
		t.Errorf("%d products and %d attentions for gradients of activations, want 8 and 1", count.products, count.attention)
	}
	lowest := 0
	for _, e := range r.Sink.Events {
		if e == "use 1" || e == "use 0" {
			lowest++
		}
	}
	if lowest != 3 { // forward, and the tied head's use of block 0
		t.Errorf("the blocks below the lowest adapter are used %d times in %q", lowest, r.Sink.Events)
	}
}
