package gpt2

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/internal/modeltest"
)

func tiny(tied bool) Config {
	return Config{Vocab: 31, Hidden: 20, Layers: 3, Heads: 5, FFN: 52, MaxPositions: 16, NormEps: 1e-5, Tied: tied}
}

func build(c Config) modeltest.Build {
	return func(e models.Env) (models.Model, error) { return New(c, e) }
}

func TestModel(t *testing.T) {
	for _, tied := range []bool{false, true} {
		t.Run(fmt.Sprintf("tied=%t", tied), func(t *testing.T) {
			c := tiny(tied)
			modeltest.Checks(t, c.Vocab, tied, build(c))
		})
	}
}

func TestParamsOfGPT2(t *testing.T) {
	s, err := Describe(Config{Vocab: 50257, Hidden: 768, Layers: 12, Heads: 12, MaxPositions: 1024, NormEps: 1e-5, Tied: true})
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, p := range s.Params() {
		total += p.Numel()
	}
	if total != 124439808 {
		t.Errorf("GPT-2 has %d parameters, want 124439808", total)
	}
}

func TestBadShapesAreRefused(t *testing.T) {
	bad := map[string]func(*Config){
		"no vocabulary":    func(c *Config) { c.Vocab = 0 },
		"a billion layers": func(c *Config) { c.Layers = 1e9 },
		"heads not shared": func(c *Config) { c.Heads = 3 },
		"no epsilon":       func(c *Config) { c.NormEps = 0 },
		"no positions":     func(c *Config) { c.MaxPositions = -1 },
	}
	for name, change := range bad {
		c := tiny(false)
		change(&c)
		if _, err := New(c, modeltest.Env(t, 1, 1)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestPlanIsTheModelsMemory(t *testing.T) {
	c := tiny(true)
	s, err := Describe(c)
	if err != nil {
		t.Fatal(err)
	}
	const cache = 2 * 3 * 20 * 4 // keys and values, layers, hidden, f32
	modeltest.Memory(t, c.MaxPositions, cache, s.Plan, build(c))
}

func TestFiguresOfPyTorch(t *testing.T) {
	modeltest.Golden(t, "gpt2.json", func(config json.RawMessage, e models.Env) (models.Model, error) {
		var c Config
		if err := json.Unmarshal(config, &c); err != nil {
			return nil, err
		}
		return New(c, e)
	})
}
