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

// variants runs a check tied and untied.
func variants(t *testing.T, check func(t *testing.T, c Config)) {
	for _, tied := range []bool{false, true} {
		t.Run(fmt.Sprintf("tied=%t", tied), func(t *testing.T) { check(t, tiny(tied)) })
	}
}

func TestGradientsAreTheSlopesOfTheLoss(t *testing.T) {
	variants(t, func(t *testing.T, c Config) { modeltest.Differences(t, c.Vocab, build(c)) })
}

func TestMicroStepsAddUp(t *testing.T) {
	variants(t, func(t *testing.T, c Config) { modeltest.Accumulation(t, c.Vocab, build(c)) })
}

func TestBlocksAndGradientsComeInOrder(t *testing.T) {
	variants(t, func(t *testing.T, c Config) { modeltest.Protocol(t, c.Vocab, c.Tied, build(c)) })
}

func TestReadingInPiecesGivesTheSameLogits(t *testing.T) {
	variants(t, func(t *testing.T, c Config) { modeltest.Pieces(t, build(c)) })
}

func TestParamsOfGPT2(t *testing.T) {
	params, err := Params(Config{Vocab: 50257, Hidden: 768, Layers: 12, Heads: 12, MaxPositions: 1024, NormEps: 1e-5, Tied: true})
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, p := range params {
		total += p.Numel()
	}
	if total != 124439808 {
		t.Errorf("GPT-2 has %d parameters, want 124439808", total)
	}
}

func TestBadShapesAreRefused(t *testing.T) {
	bad := map[string]func(*Config){
		"no vocabulary":    func(c *Config) { c.Vocab = 0 },
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
	plan, err := PlanMemory(tiny(true), 2, 8)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(tiny(true), modeltest.Env(t, 2, 8))
	if err != nil {
		t.Fatal(err)
	}
	if plan.Bytes() != m.Bytes() {
		t.Errorf("planned %d bytes, the model says %d", plan.Bytes(), m.Bytes())
	}
	if _, err := PlanMemory(tiny(true), 1, tiny(true).MaxPositions); err != nil {
		t.Error(err)
	}
	if _, err := PlanMemory(tiny(true), 1, tiny(true).MaxPositions+1); err == nil {
		t.Error("a sequence of more tokens than the model has positions was planned")
	}
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

func TestBackwardNeedsItsForward(t *testing.T) {
	variants(t, func(t *testing.T, c Config) { modeltest.Kept(t, c.Vocab, build(c)) })
}
