package llama

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/internal/modeltest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/param"
)

// tiny has three queries a key head, and a head size that is not Hidden/Heads.
func tiny(qkvBias, tied bool) Config {
	return Config{Vocab: 29, Hidden: 20, Layers: 3, Heads: 6, KVHeads: 2, HeadDim: 4, FFN: 27,
		MaxPositions: 16, RopeTheta: 100, NormEps: 1e-5, QKVBias: qkvBias, Tied: tied}
}

// qwen3 is tiny with heads that are normalised.
func qwen3(tied bool) Config {
	c := tiny(false, tied)
	c.QKNorm = true
	return c
}

func build(c Config) modeltest.Build {
	return func(e models.Env) (models.Model, error) { return New(c, e) }
}

func TestModel(t *testing.T) {
	for _, bias := range []bool{false, true} {
		for _, tied := range []bool{false, true} {
			t.Run(fmt.Sprintf("bias=%t,tied=%t", bias, tied), func(t *testing.T) {
				c := tiny(bias, tied)
				modeltest.Checks(t, c.Vocab, tied, build(c))
			})
		}
	}
}

func TestModelOfNormalisedHeads(t *testing.T) {
	for _, tied := range []bool{false, true} {
		t.Run(fmt.Sprintf("tied=%t", tied), func(t *testing.T) {
			c := qwen3(tied)
			modeltest.Checks(t, c.Vocab, tied, build(c))
		})
	}
}

// Where norms are computed again, normalised heads cost no memory a layer beside what
// heads cost that are not normalised.
func TestNormalisedHeadsAreComputedAgain(t *testing.T) {
	bytes := func(c Config, again models.Recompute) int64 {
		s, err := Describe(c)
		if err != nil {
			t.Fatal(err)
		}
		p, err := s.Plan(64, 16, device.CPU, again)
		if err != nil {
			t.Fatal(err)
		}
		return p.Bytes()
	}
	c := qwen3(true)
	one := int64(64 * 16 * (6 + 2*2) * 4 * 4) // of QKV
	for again, copies := range map[models.Recompute]int64{
		models.KeepAll: int64(c.Layers), models.RecomputeNorms: 1, models.RecomputeBlocks: 1,
	} {
		if got := bytes(c, again) - bytes(tiny(false, true), again); got != copies*one {
			t.Errorf("recompute %d: normalised heads take %d bytes more, want %d", again, got, copies*one)
		}
	}
}

func TestParamsOfQwen25(t *testing.T) {
	c := Config{Vocab: 151936, Hidden: 896, Layers: 24, Heads: 14, KVHeads: 2, FFN: 4864, MaxPositions: 32768,
		RopeTheta: 1e6, NormEps: 1e-6, QKVBias: true, Tied: true}
	s, err := Describe(c)
	if err != nil {
		t.Fatal(err)
	}
	params, total := s.Params(), 0
	for _, p := range params {
		total += p.Numel()
	}
	if total != 494032768 {
		t.Errorf("Qwen2.5-0.5B has %d parameters, want 494032768", total)
	}
	i := slices.IndexFunc(params, func(p *param.Param) bool { return p.Name == "model.layers.23.self_attn.qkv_proj.bias" })
	if i < 0 {
		t.Fatal("the keys of the last layer have no bias")
	}
	if parts := params[i].Parts; len(parts) != 3 || parts[1] != (param.Part{Name: "model.layers.23.self_attn.k_proj.bias", Rows: 128}) {
		t.Errorf("the parts of the bias are %v", parts)
	}
}

// The numbers of parameters of the published models, those of the two norms of each
// layer among them.
func TestParamsOfQwen3(t *testing.T) {
	for _, m := range []struct {
		name                                      string
		layers, hidden, heads, kvHeads, ffn, want int
		tied                                      bool
	}{
		{"0.6B", 28, 1024, 16, 8, 3072, 596049920, true},
		{"1.7B", 28, 2048, 16, 8, 6144, 1720574976, true},
		{"4B", 36, 2560, 32, 8, 9728, 4022468096, true},
		{"8B", 36, 4096, 32, 8, 12288, 8190735360, false},
		{"14B", 40, 5120, 40, 8, 17408, 14768307200, false},
		{"32B", 64, 5120, 64, 8, 25600, 32762123264, false},
	} {
		s, err := Describe(Config{Vocab: 151936, Hidden: m.hidden, Layers: m.layers, Heads: m.heads, KVHeads: m.kvHeads,
			HeadDim: 128, FFN: m.ffn, MaxPositions: 40960, RopeTheta: 1e6, NormEps: 1e-6, QKNorm: true, Tied: m.tied})
		if err != nil {
			t.Fatal(err)
		}
		total, names := 0, map[string][]int{}
		for _, p := range s.Params() {
			total += p.Numel()
			names[p.Name] = p.Shape
		}
		if total != m.want {
			t.Errorf("Qwen3-%s has %d parameters, want %d", m.name, total, m.want)
		}
		for _, norm := range []string{"q_norm", "k_norm"} {
			if shape := names["model.layers.0.self_attn."+norm+".weight"]; !slices.Equal(shape, []int{128}) {
				t.Errorf("Qwen3-%s: %s is %v", m.name, norm, shape)
			}
		}
	}
}

func TestBadShapesAreRefused(t *testing.T) {
	bad := map[string]func(*Config){
		"no vocabulary":     func(c *Config) { c.Vocab = 0 },
		"a billion layers":  func(c *Config) { c.Layers = 1e9 },
		"endless texts":     func(c *Config) { c.MaxPositions = 1e15 },
		"huge head":         func(c *Config) { c.HeadDim = 1e9 },
		"odd head":          func(c *Config) { c.HeadDim = 5 },
		"heads not shared":  func(c *Config) { c.KVHeads = 4 },
		"hidden not shared": func(c *Config) { c.HeadDim, c.Hidden = 0, 21 },
		"no epsilon":        func(c *Config) { c.NormEps = 0 },
		"falling turns":     func(c *Config) { c.RopeScaling = &RopeScaling{8, 4, 1, 8192} },
		"shrunk positions":  func(c *Config) { c.RopeScaling = &RopeScaling{0.5, 1, 4, 8192} },
	}
	for name, change := range bad {
		c := tiny(false, false)
		change(&c)
		if _, err := New(c, modeltest.Env(t, 1, 1)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// The frequencies of Llama 3.1, by the case distinction of its authors' description: short
// waves stay, long ones are stretched, and those between are mixed.
func TestStretchedFrequencies(t *testing.T) {
	s := &RopeScaling{Factor: 8, Low: 1, High: 4, Original: 8192}
	const d, theta = 128, 5e5
	var kept, mixed, stretched int
	for i := range d / 2 {
		f := math.Pow(theta, -float64(2*i)/d)
		want, length := 0.0, 2*math.Pi/f
		switch {
		case length < 8192/4.:
			want = f
			kept++
		case length > 8192:
			want = f / 8
			stretched++
		default:
			smooth := (8192/length - 1) / (4 - 1)
			want = (1-smooth)*f/8 + smooth*f
			mixed++
		}
		if got := s.stretch(f); math.Abs(got-want) > 1e-15*want+1e-18 {
			t.Errorf("frequency %d: %v, want %v", i, got, want)
		}
	}
	if kept == 0 || mixed == 0 || stretched == 0 {
		t.Errorf("%d kept, %d mixed, %d stretched: not every case was seen", kept, mixed, stretched)
	}
	if f := 0.25; (*RopeScaling)(nil).stretch(f) != f {
		t.Error("without scaling a frequency changes")
	}
}

func TestPlanIsTheModelsMemory(t *testing.T) {
	c := tiny(true, false)
	s, err := Describe(c)
	if err != nil {
		t.Fatal(err)
	}
	const cache = 2 * 3 * 2 * 4 * 4 // keys and values, layers, heads of keys, head size, f32
	modeltest.Memory(t, c.MaxPositions, cache, s.Plan, build(c))

	c = qwen3(false)
	if s, err = Describe(c); err != nil {
		t.Fatal(err)
	}
	modeltest.Memory(t, c.MaxPositions, cache, s.Plan, build(c))
}

func TestFiguresOfPyTorch(t *testing.T) {
	for _, file := range []string{"llama.json", "qwen2.json", "qwen3.json"} {
		t.Run(file, func(t *testing.T) {
			modeltest.Golden(t, file, func(config json.RawMessage, e models.Env) (models.Model, error) {
				var c Config
				if err := json.Unmarshal(config, &c); err != nil {
					return nil, err
				}
				return New(c, e)
			})
		})
	}
}

// BenchmarkStep is forward and backward of a small byte-level model.
func BenchmarkStep(b *testing.B) {
	const n, t = 8, 256
	r := modeltest.New(b, n, t, build(Config{Vocab: 256, Hidden: 128, Layers: 4, Heads: 4, KVHeads: 2, FFN: 344,
		MaxPositions: t, RopeTheta: 1e4, NormEps: 1e-5, Tied: true}))
	batch := modeltest.RandomBatch(1, n, t, 256)
	for b.Loop() {
		r.Gradients(1, batch)
	}
	b.ReportMetric(float64(b.N*n*t)/b.Elapsed().Seconds(), "tokens/s")
}
