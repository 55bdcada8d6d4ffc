package comm

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/runtime/cuda"
)

// joinGPUDirect puts gpuDirect over the engine that goes through the hosts, where the ranks
// are joined by RDMA and every rank's card reaches the memory of its GPU. Else it gives
// none, and why, which is the same on all ranks.
func joinGPUDirect(ctx context.Context, g *Group, ex exchangeUnder, under *staged) (_ *gpuDirect, why string, err error) {
	if why := under.whyNoCards(); why != "" {
		return nil, why, nil
	}
	ex.prefix += "gpudirect/"
	e := &gpuDirect{under: under, routes: newCalls[journey]()}
	if e.relay, err = newRelay(g, "GPUDirect", directWords, wordGo); err != nil {
		return nil, "", err
	}
	e.set(wordGo, firstPiece+1) // in front of the first call
	defer func() {
		if err != nil || why != "" {
			err = errors.Join(err, e.release())
		}
	}()
	if why, err = ex.agree(ctx, g, "near", g.o.nccl.tooFar(g)); err != nil || why != "" {
		return nil, why, err
	}
	var own wires // the bytes of calls are counted as the GPU's
	joined, err := g.joinLinks(ctx, "rdma", ex, hostsOf(g.members), &own)
	if err != nil {
		return nil, "", err
	}
	e.mesh = joined.(*rdma.Mesh)
	if why, err = ex.agree(ctx, g, "reach", said(e.reach())); err != nil || why != "" {
		return nil, why, err
	}
	go e.routineProxy()
	return e, "", nil
}

// reach gives the card its memory, and finds out how its writes become visible there.
func (e *gpuDirect) reach() (err error) {
	if e.slots, err = e.dev.Alloc(GPUDirectMemory()); err != nil {
		return err
	}
	if e.known, err = e.mesh.RegisterGPU(e.dev, e.slots); err != nil {
		return err
	}
	if e.known.Path == rdma.Staging {
		return errors.New(e.known.Why)
	}
	if e.fold, err = loadFolds(e.hand, e.dev, e.g.o.MaxCTAs); err != nil {
		return err
	}
	e.flush, e.how = e.flushing()
	if e.flush == nil {
		return nil
	}
	return e.flush()
}

// flushing chooses how what a card has written becomes visible to the GPU: by itself, from
// Hopper on; by the driver; or by a read of the card's, behind its writes. Drivers before
// CUDA 11.3 know nothing of it.
func (e *gpuDirect) flushing() (flush func() error, how string) {
	ordering, err := e.dev.Attribute(cuda.WritesOrdering)
	if err == nil && ordering >= cuda.OrderedToOwner {
		return nil, "none, the GPU sees at once what a card writes"
	}
	const byHost = 1
	if options, err := e.dev.Attribute(cuda.FlushOptions); err == nil && options&byHost != 0 {
		return e.dev.FlushWrites, "by the driver (cuFlushGPUDirectRDMAWrites)"
	}
	return func() error { return e.mesh.FlushGPU(e.known) }, "by a read of the card's over a queue pair to itself"
}

// whyNoCards says why network cards have no part in what the engine moves; "" where the
// ranks are joined by them.
func (e *staged) whyNoCards() string {
	over := e.over
	if two, ok := over.(*twoLevel); ok {
		over = two.all
	}
	f, ok := over.(*flat)
	if !ok {
		return "the ranks are of one host"
	}
	if _, ok := f.x.links.(*rdma.Mesh); ok {
		return ""
	}
	for r, m := range e.g.members {
		if m.NoRDMA != "" {
			return fmt.Sprintf("no RDMA: rank %d on %s: %s", r, m.Host, m.NoRDMA)
		}
	}
	return "no RDMA: the ranks are joined by " + e.g.linkTo(-1)
}
