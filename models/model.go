package models

import (
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Batch is one micro-batch. Tokens and Targets are i32 [B*T]; a negative target
// does not count.
type Batch struct {
	B, T            int
	Tokens, Targets tensor.Tensor
	// Docs is i32 [B*T], the first position within its sequence of each token's
	// document, which attention does not leave. Optional: one document a sequence.
	Docs tensor.Tensor
	// Step is the training step, and Sample the place of the first sequence in the
	// step's batch over all ranks, in which the others follow it. All that is random
	// in training follows from them, so that it does not depend on the split.
	Step, Sample int
}

// Model is what a training loop needs of a model. It computes on one device and
// on the stream it was built with; every call enqueues and returns. It keeps
// activations of the last Forward only.
type Model interface {
	// Params lists the parameters in the order in which forward first uses
	// them. A tied weight stands there once.
	Params() []*param.Param
	// Init writes the initial value of p, a pure function of seed and p's
	// name, to a host slice of p.Numel() elements.
	Init(p *param.Param, seed uint64, out []float32)
	// Forward runs the layers over b. Without train it adds the sum of the losses
	// of b's targets to loss[1] f64. With train it keeps what Backward needs, and
	// Backward adds the losses to loss: there the logits are computed once, and
	// become their own gradient.
	Forward(w param.Weights, b Batch, loss tensor.Tensor, train bool)
	// Backward hands out scale times the gradient of the sum of the last
	// Forward's losses, the last block first.
	Backward(w param.Weights, g param.GradSink, scale float32)
	// Bytes is the memory that the model holds beside its parameters.
	Bytes() int64
}

// Generator is a Model that continues a text, keeping keys and values of what
// it has read.
type Generator interface {
	// Vocab is V, the length of the logits.
	Vocab() int
	// Reset forgets the text and makes room for at most maxLen tokens.
	Reset(maxLen int) error
	// Next reads further tokens and writes the logits [V] f32 behind the last.
	// It overwrites what Forward kept for Backward. The tokens are copied; wait
	// for the stream before the next call.
	Next(w param.Weights, tokens []int32, logits tensor.Tensor) error
}
