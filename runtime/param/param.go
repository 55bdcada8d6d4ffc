// Package param is the contract between a model and whoever holds its
// parameters and gradients: a model reads weights through Weights and hands out
// gradients through a GradSink, and knows neither how many ranks there are nor
// how anything is sharded.
package param

import (
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Param describes one parameter tensor. Two models built alike list equal
// parameters in equal order on every rank. Within a process a parameter is known by its
// pointer: lists that are given to one DDP or Zero hold the same ones.
type Param struct {
	Name  string // unique within the model, Hugging Face's name where there is one
	Shape []int  // of at least one dimension, each at least 1
	// Parts are the tensors that lie one behind the other in this one, so that
	// one matrix product serves them all. Empty: the parameter is one tensor.
	Parts []Part
	DType dtype.DType // of the weight that the model computes with
	Block int         // the block whose Use makes it readable: 0 is first in forward
	// Frozen parameters get no gradient and no optimizer state.
	Frozen bool
	// NoDecay parameters (norms, biases) are left out of weight decay.
	NoDecay bool
}

// Numel is the number of elements.
func (p *Param) Numel() int { return tensor.Numel(p.Shape) }

// Part is consecutive rows of a parameter, a tensor with a name of its own: its
// shape is the parameter's but for the first dimension, which is Rows.
type Part struct {
	Name string
	Rows int
}

// Split lists the parts, or the whole as the only one.
func (p *Param) Split() []Part {
	if len(p.Parts) > 0 {
		return p.Parts
	}
	return []Part{{p.Name, p.Shape[0]}}
}

// EachPart calls f with each part and its range of elements [from, to).
func (p *Param) EachPart(f func(part Part, from, to int)) {
	row := p.Numel() / max(p.Shape[0], 1)
	at := 0
	for _, part := range p.Split() {
		f(part, at, at+part.Rows*row)
		at += part.Rows * row
	}
}

// GradSink takes gradients. Get and Ready are host calls, made while the
// backward pass is being enqueued, by one goroutine.
//
// In each micro-step a model calls Get for every trainable parameter that it
// uses, as often as it likes, enqueues work that writes the gradient on its
// compute stream, and calls Ready once, after the last such work is enqueued. A
// tied weight is Ready after its last writer.
type GradSink interface {
	// Get is where p's gradient belongs, shaped p.Shape, of the sink's type of
	// gradients, and whether to add to what is there (true) or to overwrite it. The
	// memory is the sink's, and is written by work on the compute stream alone. A second Get of p in one micro-step says true:
	// the first writer has been there.
	Get(p *Param) (grad tensor.Tensor, add bool)
	// Ready says that p's gradient of this micro-step is complete at the
	// current place of the compute stream.
	Ready(p *Param)
}

// RowSink is a GradSink that does not wait for the rows of an embedding which is also
// the head. Such a gradient is dense from the beginning of the backward pass on, and
// gets a few more rows at its end: a sink that communicates can send the dense part
// beside the backward pass, and at the end the rows alone.
type RowSink interface {
	GradSink
	// OfferRows says in Ready's place that p's gradient is complete but for n rows.
	// true: GatherRows is to bring them. false: they are to be added as usual, by
	// Get and Ready.
	OfferRows(p *Param, n int) bool
	// GatherRows brings what OfferRows has promised: dy[n,C] to be added to rows
	// ids[n] i32. It returns p's gradient and all ranks' rows, in their order, which
	// the caller adds at the current place of the compute stream. ok is false where
	// nothing was promised.
	GatherRows(p *Param, dy, ids tensor.Tensor) (grad, allDy, allIDs tensor.Tensor, ok bool)
}

// Weights gives the model its parameters. A model brackets each block's use, in
// forward, backward, recomputation, evaluation and sampling, and keeps no
// tensor from Weight across the brackets. All calls are host calls at enqueue
// time, by one goroutine.
type Weights interface {
	// Use makes the parameters of block readable by work enqueued on the
	// compute stream from now on.
	Use(block int)
	// Weight is p's weight, shaped p.Shape, of type p.DType.
	Weight(p *Param) tensor.Tensor
	// Done says that all work reading the block's parameters is enqueued.
	Done(block int)
}
