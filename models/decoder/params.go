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
	p := &param.Param{Name: name, Shape: shape, DType: dtype.F32, Block: block, NoDecay: len(shape) == 1}
	s.params = append(s.params, p)
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

// AddTable asks for constant memory; to sees it when Fill is called.
func (s *Spec) AddTable(to *tensor.Tensor, name string, dt dtype.DType, shape ...int) {
	s.tables = append(s.tables, table{name, dt, shape, to})
}

// Params lists the parameters in the order in which forward first uses them.
func (s *Spec) Params() []*param.Param { return s.params }

// Init fills out with p's initial value: ones for norms, zeros for biases,
// normal numbers for the rest.
func (m *Model) Init(p *param.Param, seed uint64, out []float32) {
	switch {
	case strings.HasSuffix(p.Name, ".bias"):
		clear(out)
	case p.NoDecay: // the weight of a norm
		for i := range out {
			out[i] = 1
		}
	default:
		std := initStd
		if slices.ContainsFunc(m.spec.Residual, func(end string) bool { return strings.HasSuffix(p.Name, end) }) {
			std /= math.Sqrt(float64(2 * m.spec.Layers))
		}
		models.NewRand(seed, p.Name).Normal(out, std)
	}
}
