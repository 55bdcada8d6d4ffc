package modeltest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Log is what a model called, in order: "use 3", "done 3", "get NAME",
// "ready NAME".
type Log struct{ Events []string }

func (l *Log) add(format string, args ...any) {
	l.Events = append(l.Events, fmt.Sprintf(format, args...))
}

// Weights is a replica that fails the test when a weight is read outside its
// block's brackets, and when more than one block is open.
type Weights struct {
	*param.Replica
	log  *Log
	t    testing.TB
	open []int
}

func (w *Weights) Use(block int) {
	w.t.Helper()
	w.log.add("use %d", block)
	if len(w.open) > 0 {
		w.t.Errorf("block %d is used while %v is open", block, w.open)
	}
	w.open = append(w.open, block)
}

func (w *Weights) Done(block int) {
	w.t.Helper()
	w.log.add("done %d", block)
	i := slices.Index(w.open, block)
	if i < 0 {
		w.t.Fatalf("block %d is done and was not open: %v", block, w.open)
	}
	w.open = slices.Delete(w.open, i, i+1)
}

func (w *Weights) Weight(p *param.Param) tensor.Tensor {
	w.t.Helper()
	if !slices.Contains(w.open, p.Block) {
		w.t.Errorf("%s of block %d is read while %v is open", p.Name, p.Block, w.open)
	}
	return w.Replica.Weight(p)
}

// Closed fails the test when a block is still open.
func (w *Weights) Closed() {
	w.t.Helper()
	if len(w.open) > 0 {
		w.t.Errorf("blocks %v are still open", w.open)
	}
}

// Sink holds gradients in f32 and checks the protocol.
type Sink struct {
	*Log
	t       testing.TB
	grads   map[*param.Param][]float32
	written map[*param.Param]bool // in this step
	got     map[*param.Param]bool // in this micro-step
	ready   map[*param.Param]bool // in this micro-step
}

func newSink(t testing.TB, params []*param.Param, log *Log) *Sink {
	s := &Sink{Log: log, t: t, grads: map[*param.Param][]float32{}}
	for _, p := range params {
		s.grads[p] = make([]float32, p.Numel())
	}
	return s
}

// BeginStep fills the gradients with rubbish: the first writer overwrites.
func (s *Sink) BeginStep() {
	for _, g := range s.grads {
		for i := range g {
			g[i] = 12345
		}
	}
	s.written = map[*param.Param]bool{}
	s.BeginMicroStep()
}

// BeginMicroStep forgets what was ready.
func (s *Sink) BeginMicroStep() {
	s.got, s.ready = map[*param.Param]bool{}, map[*param.Param]bool{}
}

// Grad is p's gradient.
func (s *Sink) Grad(p *param.Param) []float32 { return s.grads[p] }

func (s *Sink) Get(p *param.Param) (tensor.Tensor, bool) {
	s.t.Helper()
	s.add("get %s", p.Name)
	if p.Frozen {
		s.t.Errorf("Get of %s, which is frozen", p.Name)
	}
	if s.ready[p] {
		s.t.Errorf("Get of %s after its Ready", p.Name)
	}
	add := s.written[p]
	s.written[p], s.got[p] = true, true
	return tensor.New(device.Of(s.grads[p]), dtype.F32, p.Shape...), add
}

func (s *Sink) Ready(p *param.Param) {
	s.t.Helper()
	s.add("ready %s", p.Name)
	if !s.got[p] || s.ready[p] {
		s.t.Errorf("Ready of %s: Get before it %t, Ready before it %t", p.Name, s.got[p], s.ready[p])
	}
	s.ready[p] = true
}

// AllReady fails the test unless exactly the trainable parameters are ready.
func (s *Sink) AllReady() {
	s.t.Helper()
	for p := range s.grads {
		if s.ready[p] == p.Frozen {
			s.t.Errorf("%s: frozen %t, ready %t", p.Name, p.Frozen, s.ready[p])
		}
	}
}
