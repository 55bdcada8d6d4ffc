// Package gpu puts the CUDA implementations of all operations together.
package gpu

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gorun-dev/gorun/kernels/activation"
	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/kernels/attention"
	"github.com/gorun-dev/gorun/kernels/dropout"
	"github.com/gorun-dev/gorun/kernels/elementwise"
	"github.com/gorun-dev/gorun/kernels/embedding"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/kernels/linear"
	"github.com/gorun-dev/gorun/kernels/loss"
	"github.com/gorun-dev/gorun/kernels/lowrank"
	"github.com/gorun-dev/gorun/kernels/norm"
	"github.com/gorun-dev/gorun/kernels/sum"
	"github.com/gorun-dev/gorun/runtime/cuda"
)

// The families under names of their own, so that one struct can embed them all.
type (
	linearOps      = linear.CUDA
	normOps        = norm.CUDA
	attentionOps   = attention.CUDA
	rotaryOps      = attention.Rotary
	activationOps  = activation.CUDA
	embeddingOps   = embedding.CUDA
	lossOps        = loss.CUDA
	elementwiseOps = elementwise.CUDA
	dropoutOps     = dropout.CUDA
	lowrankOps     = lowrank.CUDA
	sumOps         = sum.CUDA
	optimizerOps   = adamw.CUDA
)

// Ops is every operation on the memory of one GPU: bf16 tensors, f32 statistics,
// gradients of parameters in bf16 or f32. It implements models.Ops, and the
// optimizer's step beside. Methods may be called from any goroutine; work that uses
// scratch memory must be on one stream, or be ordered by events. Reruns give the
// same bits on the same GPU and libraries.
type Ops struct {
	linearOps
	normOps
	attentionOps
	rotaryOps
	activationOps
	embeddingOps
	lossOps
	elementwiseOps
	dropoutOps
	lowrankOps
	sumOps
	optimizerOps

	env     *nv.Env
	by      string         // the attention asked for
	closers []func() error // in the order of opening
}

// Options are choices that do not change what is computed, but for rounding.
type Options struct {
	// Attention names its implementation: auto, native or cudnn; "" is auto.
	Attention string
}

// New opens the libraries and compiles the kernels for dev, or finds them compiled
// on disk. An error names the library or the choice that is not to be had here.
func New(dev *cuda.Device, o Options) (*Ops, error) {
	if o.Attention == "" {
		o.Attention = "auto"
	}
	ops := &Ops{env: nv.NewEnv(dev), by: o.Attention}
	if err := ops.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("operations on %s: %w", dev, err), ops.Close())
	}
	return ops, nil
}

func (o *Ops) open() (err error) {
	o.closers = append(o.closers, o.env.Close)
	if o.linearOps, err = linear.NewCUDA(o.env); err != nil {
		return err
	}
	o.closers = append(o.closers, o.linearOps.Close)
	if o.attentionOps, err = attention.NewCUDA(o.env, o.by); err != nil {
		return err
	}
	o.closers = append(o.closers, o.attentionOps.Close)
	for _, family := range []func() error{
		load(&o.normOps, o.env, norm.NewCUDA),
		load(&o.rotaryOps, o.env, attention.NewRoPE),
		load(&o.activationOps, o.env, activation.NewCUDA),
		load(&o.embeddingOps, o.env, embedding.NewCUDA),
		load(&o.lossOps, o.env, loss.NewCUDA),
		load(&o.elementwiseOps, o.env, elementwise.NewCUDA),
		load(&o.dropoutOps, o.env, dropout.NewCUDA),
		load(&o.lowrankOps, o.env, lowrank.NewCUDA),
		load(&o.sumOps, o.env, sum.NewCUDA),
		load(&o.optimizerOps, o.env, adamw.NewCUDA),
	} {
		if err := family(); err != nil {
			return err
		}
	}
	return nil
}

// load is make for to.
func load[T any](to *T, env *nv.Env, make func(*nv.Env) (T, error)) func() error {
	return func() (err error) {
		*to, err = make(env)
		return err
	}
}

// Backend says what multiplies. The attention depends on the shape too: see
// Implementation, and Explain for why.
func (o *Ops) Backend() string { return "cuBLASLt " + o.Products().Version() }

// Close releases the libraries, the kernels and the scratch memory. Synchronize the
// streams that use o first. A second time it does nothing.
func (o *Ops) Close() error {
	var errs []error
	for _, c := range slices.Backward(o.closers) {
		errs = append(errs, c())
	}
	o.closers = nil
	return errors.Join(errs...)
}
