// Package lora trains low-rank adapters instead of a model's weights (Hu et al.,
// "LoRA: Low-Rank Adaptation of Large Language Models", 2021):
//
//	y = x·Wᵀ + b + alpha/R · dropout(x)·Aᵀ·Bᵀ
//
// W and b stay as they are, and cost neither gradients nor optimizer state. A[R,I]
// starts as PEFT's does, B[O,R] at zero, so that training begins with the model as
// it was. Adapters are written and read in PEFT's format, and merged into weights.
//
// Where several layers of a model are one product, such as queries, keys and values,
// each has its adapter, and the adapters are one product too: their A are a parameter
// of all their rows, their B another, laid out along a matrix's diagonal when they are
// used. Such layers drop the same elements of x.
//
// Letters are those of package models; R is the rank, I and O are a layer's inputs and
// outputs.
package lora

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/runtime/param"
)

// Config is what the adapters of a model are.
type Config struct {
	R       int     // rank
	Alpha   float64 // the adapters' outputs are multiplied by Alpha/R; 0: 2R
	Dropout float64 // in training, the share of an adapter's inputs that is zeroed
	// Targets are the layers that get an adapter, by the ends of their names: q_proj,
	// or mlp.c_proj. None, and all or all-linear, are every linear layer of the blocks.
	Targets []string
	Seed    uint64 // of what is dropped
}

// scale is what an adapter's output is multiplied by.
func (c Config) scale() float64 { return c.Alpha / float64(c.R) }

// complete fills in Alpha and returns an error for what cannot be.
func (c Config) complete() (Config, error) {
	switch {
	case c.R < 1:
		return c, fmt.Errorf("lora: a rank of %d; it must be at least 1", c.R)
	case !(c.Alpha >= 0) || math.IsInf(c.Alpha, 0):
		return c, fmt.Errorf("lora: an alpha of %v; it must be positive, or 0 for twice the rank", c.Alpha)
	case !(c.Dropout >= 0 && c.Dropout < 1):
		return c, fmt.Errorf("lora: a dropout of %v; it must be at least 0 and below 1", c.Dropout)
	}
	if c.Alpha == 0 {
		c.Alpha = 2 * float64(c.R)
	}
	return c, nil
}

// The ends of the names of an adapter's tensors, in memory and in PEFT's files.
const (
	endA = ".lora_A.weight"
	endB = ".lora_B.weight"
)

// Adapters is those of one model. It implements decoder.Adapter.
type Adapters struct {
	Config
	// Modules names the layers that have an adapter, in the model's order, as PEFT does:
	// model.layers.0.self_attn.q_proj.
	Modules []string

	layers  map[*param.Param]*layer // by the weight
	params  []*param.Param          // the adapters' own, in the model's order
	scratch scratch
}

// layer is the adapters of one product.
type layer struct {
	a, b   *param.Param // [G*R,I] and [M,R]: the factors of G adapters, one behind the other
	blocks [][2]int     // the rows of the weight that each B is for, M in all
	random models.Rand  // of what is dropped, by the step
}

var _ decoder.Adapter = (*Adapters)(nil)

// Add freezes the parameters of the model that s describes, and puts adapters on it.
// Call it before the model is built or planned. An error for targets that the model
// does not have lists those that it has.
func Add(s *decoder.Spec, c Config) (*Adapters, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	chosen, err := choose(s, c.Targets)
	if err != nil {
		return nil, err
	}
	l := &Adapters{Config: c, layers: map[*param.Param]*layer{}}
	for _, p := range s.Params() {
		p.Frozen = true
	}
	s.Adapt(l, func(weight *param.Param) []*param.Param {
		return l.adapt(weight, chosen)
	})
	return l, nil
}

// adapt lists the parameters of the adapters that the parts of weight get.
func (l *Adapters) adapt(weight *param.Param, chosen map[string]bool) []*param.Param {
	x := &layer{random: models.NewRand(l.Seed, "dropout before "+module(weight.Name))}
	in := weight.Shape[1]
	var as, bs []param.Part
	rows := 0
	from := 0
	for _, part := range weight.Split() {
		if name := module(part.Name); chosen[name] {
			l.Modules = append(l.Modules, name)
			as, bs = append(as, param.Part{Name: name + endA, Rows: l.R}), append(bs, param.Part{Name: name + endB, Rows: part.Rows})
			x.blocks = append(x.blocks, [2]int{from, from + part.Rows})
			rows += part.Rows
		}
		from += part.Rows
	}
	if len(as) == 0 {
		return nil
	}
	x.a = &param.Param{Name: module(weight.Name) + endA, Shape: []int{len(as) * l.R, in}, Parts: as, DType: weight.DType, Block: weight.Block}
	x.b = &param.Param{Name: module(weight.Name) + endB, Shape: []int{rows, l.R}, Parts: bs, DType: weight.DType, Block: weight.Block}
	l.layers[weight] = x
	list := []*param.Param{x.a, x.b}
	for _, p := range list {
		if len(p.Parts) == 1 {
			p.Name, p.Parts = p.Parts[0].Name, nil
		}
	}
	l.params = append(l.params, list...)
	return list
}

// String says what the adapters are, for people to read.
func (l *Adapters) String() string {
	dropout := ""
	if l.Dropout > 0 {
		dropout = fmt.Sprintf(", dropout %g", l.Dropout)
	}
	return fmt.Sprintf("rank %d, alpha %g%s, on %d layers: %s", l.R, l.Alpha, dropout, len(l.Modules), strings.Join(l.targets(), ", "))
}

// module is the layer that a weight is of.
func module(weight string) string { return strings.TrimSuffix(weight, ".weight") }

// choose names the layers that targets are.
func choose(s *decoder.Spec, targets []string) (map[string]bool, error) {
	chosen := map[string]bool{}
	var modules, kinds []string
	for _, w := range s.Linears() {
		for _, part := range w.Split() {
			name := module(part.Name)
			modules = append(modules, name)
			if k := kind(name); !slices.Contains(kinds, k) {
				kinds = append(kinds, k)
			}
		}
	}
	if len(targets) == 0 {
		targets = []string{"all"}
	}
	for _, target := range targets {
		found := false
		for _, name := range modules {
			if everything(target) || name == target || strings.HasSuffix(name, "."+target) {
				chosen[name], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("lora.targets: no linear layer of the model's blocks is called %q; there are %s, and all", target, strings.Join(kinds, ", "))
		}
	}
	return chosen, nil
}

// Params lists the adapters' parameters in the model's order: factors A and B of a
// product in turn, with the adapters of its layers as their parts.
func (l *Adapters) Params() []*param.Param { return l.params }

// Init fills A with PEFT's first values, uniform between ±1/sqrt(I), each adapter's as
// if it stood alone, and B with zeros.
func (l *Adapters) Init(p *param.Param, seed uint64, out []float32) bool {
	if !slices.Contains(l.params, p) {
		return false
	}
	p.EachPart(func(part param.Part, from, to int) {
		if strings.HasSuffix(part.Name, endB) {
			clear(out[from:to])
			return
		}
		r, bound := models.NewRand(seed, part.Name), 1/math.Sqrt(float64(p.Shape[1]))
		for i := range out[from:to] {
			out[from+i] = float32((2*r.Float64(uint64(i)) - 1) * bound)
		}
	})
	return true
}
