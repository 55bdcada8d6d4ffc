package decoder

import (
	"math"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// initStd is the deviation of initial weights. Projections back into the
// residual stream start smaller by sqrt(2 * layers), one for each such addition,
// so that the stream's variance does not grow with depth (GPT-2, section 2.3).
const initStd = 0.02

// Add lists a further parameter. Forward must first use them in the order in
// which they are added. What has one dimension is a norm's weight or a bias.
func (s *Spec) Add(block int, name string, shape ...int) *param.Param {
	p := &param.Param{Name: name, Shape: shape, DType: s.DType, Block: block, NoDecay: len(shape) == 1}
	s.params = append(s.params, p)
	return p
}

// AddMerged lists a parameter of several tensors, whose rows follow each other.
// Each is named prefix + its part's name + suffix, and all have inner columns, none
// where inner is 0.
func (s *Spec) AddMerged(block int, prefix, name, suffix string, inner int, parts ...param.Part) *param.Param {
	shape := []int{0}
	if inner > 0 {
		shape = append(shape, inner)
	}
	for i := range parts {
		shape[0] += parts[i].Rows
		parts[i].Name = prefix + parts[i].Name + suffix
	}
	p := s.Add(block, prefix+name+suffix, shape...)
	p.Parts = parts
	return p
}

// AddHead makes the embedding the head where they are tied, and adds a weight of
// its own, the last, where not.
func (s *Spec) AddHead(name string, embedding *param.Param) {
	s.head = embedding
	if !s.Tied {
		s.head = s.Add(s.last(), name, s.Vocab, s.Hidden)
	}
}

// AddTable asks for constant memory, which fill computes on the host and a layer
// sees in to.
func (s *Spec) AddTable(to *tensor.Tensor, name string, dt dtype.DType, fill func(host tensor.Tensor), shape ...int) {
	s.tables = append(s.tables, table{name, dt, shape, to, fill})
}

// Params lists the parameters in the order in which forward first uses them.
func (s *Spec) Params() []*param.Param { return s.params }

// Init fills out with p's initial value: ones for norms, zeros for biases,
// normal numbers for the rest, each part as if it stood alone; what an adapter says
// for its parameters.
func (m *Model) Init(p *param.Param, seed uint64, out []float32) {
	if m.spec.adapter != nil && m.spec.adapter.Init(p, seed, out) {
		return
	}
	p.EachPart(func(part param.Part, from, to int) {
		m.initPart(part.Name, p.NoDecay, seed, out[from:to])
	})
}

func (m *Model) initPart(name string, vector bool, seed uint64, out []float32) {
	switch {
	case strings.HasSuffix(name, ".bias"):
		clear(out)
	case vector: // the weight of a norm
		for i := range out {
			out[i] = 1
		}
	default:
		std := initStd
		if slices.ContainsFunc(m.spec.Residual, func(end string) bool { return strings.HasSuffix(name, end) }) {
			std /= math.Sqrt(float64(2 * m.spec.Layers))
		}
		models.NewRand(seed, name).Normal(out, std)
	}
}
