package models

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Env is where a model is built: the device, the compute stream, the
// operations and the largest micro-batch it must hold. Batches of fewer
// sequences and fewer positions work in the same memory.
type Env struct {
	Device    device.Device
	Stream    device.Stream
	Ops       Ops
	B, T      int
	Recompute Recompute
}

// Recompute says which activations the backward pass computes again, which saves
// their memory. It changes no bit of the results.
type Recompute uint8

const (
	KeepAll         Recompute = iota
	RecomputeNorms            // outputs of norms and of activation functions: cheap, about a third of the memory
	RecomputeBlocks           // all but each block's input: a second forward pass
)

// Check returns an error where no model can be built.
func (e Env) Check() error {
	switch {
	case e.Device == nil || e.Stream == nil || e.Ops == nil:
		return fmt.Errorf("models: the environment lacks a device, a stream or the operations")
	case e.B < 1 || e.T < 1:
		return fmt.Errorf("models: a micro-batch of %d sequences of %d tokens; both must be at least 1", e.B, e.T)
	}
	return nil
}

// CheckBatch panics when b does not fit the environment, which is a fault of
// the loop that made it.
func (e Env) CheckBatch(b Batch) {
	if b.B < 1 || b.T < 1 || b.B > e.B || b.T > e.T || b.Tokens.Numel() != b.B*b.T || b.Targets.Numel() != b.B*b.T || !b.Docs.None() && b.Docs.Numel() != b.B*b.T {
		panic(fmt.Sprintf("models: a batch of %d x %d with tokens %s and targets %s, built for at most %d x %d",
			b.B, b.T, b.Tokens, b.Targets, e.B, e.T))
	}
}

// Ints sees a slice as an i32 tensor of one dimension, sharing its memory.
func Ints(v []int32) tensor.Tensor { return tensor.New(device.Of(v), dtype.I32, len(v)) }
