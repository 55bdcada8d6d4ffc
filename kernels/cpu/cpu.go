// Package cpu puts the CPU implementations of all operations together.
package cpu

import (
	"github.com/gorun-dev/gorun/kernels/activation"
	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/kernels/attention"
	"github.com/gorun-dev/gorun/kernels/dropout"
	"github.com/gorun-dev/gorun/kernels/elementwise"
	"github.com/gorun-dev/gorun/kernels/embedding"
	"github.com/gorun-dev/gorun/kernels/gemm"
	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/kernels/linear"
	"github.com/gorun-dev/gorun/kernels/loss"
	"github.com/gorun-dev/gorun/kernels/lowrank"
	"github.com/gorun-dev/gorun/kernels/norm"
	"github.com/gorun-dev/gorun/kernels/sum"
)

// The families under names of their own, so that one struct can embed them all.
type (
	linearOps      = linear.CPU
	normOps        = norm.CPU
	attentionOps   = attention.CPU
	activationOps  = activation.CPU
	embeddingOps   = embedding.CPU
	lossOps        = loss.CPU
	elementwiseOps = elementwise.CPU
	dropoutOps     = dropout.CPU
	lowrankOps     = lowrank.CPU
	sumOps         = sum.CPU
	optimizerOps   = adamw.CPU
)

// Ops is every operation on host memory, f32. It implements models.Ops, and the
// optimizer's step beside. Methods may be called from any goroutine; work of
// several streams takes turns. The bits of results do not depend on the number
// of threads, except with OpenBLAS.
type Ops struct {
	linearOps
	normOps
	*attentionOps
	activationOps
	embeddingOps
	lossOps
	elementwiseOps
	dropoutOps
	lowrankOps
	sumOps
	optimizerOps

	pool    *workers.Pool
	backend string
}

// Options are choices that do not change what is computed.
type Options struct {
	// GEMM names the matrix product: auto, own, openblas or gonum; "" is auto.
	GEMM string
}

// New starts operations on threads workers, at least one: the stream's own
// goroutine and threads-1 more. Close ends them. An error says that the matrix
// product asked for is not to be had here.
func New(threads int, o Options) (*Ops, error) {
	mul, why, err := gemm.Choose(o.GEMM)
	if err != nil {
		return nil, err
	}
	backend := mul.Name()
	if why != "" {
		backend += " (" + why + ")"
	}
	p := workers.New(threads)
	return &Ops{
		linearOps:      linear.NewCPU(p, mul),
		normOps:        norm.NewCPU(p),
		attentionOps:   attention.NewCPU(p, mul),
		activationOps:  activation.NewCPU(p),
		embeddingOps:   embedding.NewCPU(p),
		lossOps:        loss.NewCPU(p),
		elementwiseOps: elementwise.NewCPU(p),
		dropoutOps:     dropout.NewCPU(p),
		lowrankOps:     lowrank.NewCPU(p),
		sumOps:         sum.NewCPU(p),
		optimizerOps:   adamw.NewCPU(p),
		pool:           p,
		backend:        backend,
	}, nil
}

// Backend says which matrix product is in use, and why where it is not the first
// choice.
func (o *Ops) Backend() string { return o.backend }

// Threads is the number of workers.
func (o *Ops) Threads() int { return o.pool.Threads() }

// Close ends the workers. Close the streams that use o first.
func (o *Ops) Close() { o.pool.Close() }
