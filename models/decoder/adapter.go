package decoder

import (
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/param"
)

// Adapter is maps beside the linear layers of a model, for which Adapt has listed
// parameters. A Spec's adapter serves the one model that the Spec makes.
type Adapter interface {
	layer.Adapter
	// Plan asks for memory that nothing else uses, for batches of at most n rows.
	Plan(p *models.Plan, n int)
	// Bind hands out the memory that the last Plan asked for.
	Bind(mem models.Memory)
	// Init writes p's initial value as models.Model does. It reports false, and writes
	// nothing, for a parameter that is not the adapter's.
	Init(p *param.Param, seed uint64, out []float32) bool
}

// Linears lists the weights of the layers' linear maps.
func (s *Spec) Linears() (list []*param.Param) {
	for _, p := range s.params {
		if len(p.Shape) == 2 && p.Block >= 1 && p.Block < s.last() {
			list = append(list, p)
		}
	}
	return list
}

// Adapt puts a on the linear layers: the parameters that extra lists for each weight
// of Linears, none perhaps, are listed behind that weight and its bias.
func (s *Spec) Adapt(a Adapter, extra func(weight *param.Param) []*param.Param) {
	s.adapter = a
	for _, w := range s.Linears() {
		at := 1 + slices.Index(s.params, w)
		if at < len(s.params) && s.params[at].Name == strings.TrimSuffix(w.Name, ".weight")+".bias" {
			at++
		}
		s.params = slices.Insert(s.params, at, extra(w)...)
	}
}
