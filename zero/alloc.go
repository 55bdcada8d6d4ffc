package zero

import (
	"fmt"
	"slices"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// alloc gets the memory of all weights, gradients, masters and buffers, and points
// every bucket to its places. What travels comes from the group.
func (z *Zero) alloc() error {
	if err := z.allocWeights(); err != nil {
		return err
	}
	masters := 0
	for _, b := range z.buckets {
		if b.DType != dtype.F32 {
			masters += 4 * b.shard.Numel()
		}
	}
	from := z.options.Masters
	if from == nil {
		from = z.compute.Device()
	}
	memory, err := z.privateFrom(from, &z.held.Masters, masters)
	if err != nil {
		return err
	}
	cut := cutter{memory}
	for _, b := range z.buckets {
		b.master = b.shard
		if b.DType != dtype.F32 {
			b.master = cut.next(dtype.F32, b.shard.Numel())
		}
	}
	if err := z.allocGradients(); err != nil {
		return err
	}
	if z.wire, err = z.shared(&z.held.Buffers, z.plan.largestWire()); err != nil {
		return err
	}
	return z.allocBlocks()
}

// allocWeights gets whole weights, or in stage 3 this rank's part of them.
func (z *Zero) allocWeights() error {
	ranks, rank := z.group.Size(), z.group.Rank()
	lists := [][]*bucket{z.buckets, z.frozen}
	if z.plan.Stage == 3 { // frozen ones are gathered too
		lists = [][]*bucket{slices.Concat(z.buckets, z.frozen)}
	}
	for i, list := range lists {
		n := 0
		for _, b := range list {
			n += b.weightBytes()
		}
		get := z.shared
		if i == 1 {
			get = z.private
		}
		if z.plan.Stage == 3 {
			n /= ranks
		}
		memory, err := get(&z.held.Weights, n)
		if err != nil {
			return err
		}
		cut := cutter{memory}
		for _, b := range list {
			if z.plan.Stage == 3 {
				b.shard = cut.next(b.DType, b.Padded/ranks)
				continue
			}
			b.weights = cut.next(b.DType, b.Padded)
			b.shard = part(b.weights, rank, ranks)
		}
	}
	return nil
}

// allocGradients gets buckets for all gradients, which in stage 1 are reduced where
// they lie; or this rank's part of them in f32, and the buffers in which buckets
// are written.
func (z *Zero) allocGradients() error {
	n := 0
	for _, b := range z.buckets {
		if z.plan.Stage == 1 {
			n += b.gradBytes()
		} else {
			n += 4 * b.shard.Numel()
		}
	}
	get := z.private
	if z.plan.Stage == 1 {
		get = z.shared
	}
	memory, err := get(&z.held.Gradients, n)
	if err != nil {
		return err
	}
	cut := cutter{memory}
	for _, b := range z.buckets {
		if z.plan.Stage == 1 {
			b.flat = cut.next(b.GradDType, b.Padded)
			b.grad = part(b.flat, z.group.Rank(), z.group.Size())
		} else {
			b.grad = cut.next(dtype.F32, b.shard.Numel())
		}
	}
	if z.plan.Stage == 1 {
		return nil
	}
	var tied []*bucket
	for _, b := range z.buckets {
		if b.Tied {
			tied = append(tied, b)
		}
	}
	sizes := z.plan.bucketBuffers()
	for i, n := range sizes {
		memory, err := z.shared(&z.held.Buffers, n)
		if err != nil {
			return err
		}
		x := &buffer{memory: memory}
		if own := i - (len(sizes) - len(tied)); own >= 0 {
			tied[own].own = x
		} else {
			z.buffers = append(z.buffers, x)
		}
	}
	return nil
}

// private is n bytes that Close frees.
func (z *Zero) private(kind *int64, n int) (device.Buffer, error) {
	return z.privateFrom(z.compute.Device(), kind, n)
}

func (z *Zero) privateFrom(from device.Allocator, kind *int64, n int) (device.Buffer, error) {
	b, err := from.Alloc(n)
	if err == nil && n > 0 {
		*kind += int64(n)
		z.own = append(z.own, b)
	}
	return b, err
}

// shared is n bytes that the group moves, on the streams' device. One rank moves
// nothing, and its group need not know of a device.
func (z *Zero) shared(kind *int64, n int) (device.Buffer, error) {
	if z.group.Size() == 1 || n == 0 {
		return z.private(kind, n)
	}
	b, err := z.group.Alloc(n)
	if err == nil && b.OnHost() != (z.compute.Device().Kind() == device.CPU) {
		err = fmt.Errorf("the group gives memory of another device than that of the streams, %s: it must be made with it (comm.Options.Device)", z.compute.Device())
	}
	*kind += int64(n)
	return b, err
}

// cutter hands out memory piece by piece.
type cutter struct{ rest device.Buffer }

func (c *cutter) next(dt dtype.DType, n int) tensor.Tensor {
	t := tensor.New(c.rest.Slice(0, n*dt.Size()), dt, n)
	c.rest = c.rest.Slice(n*dt.Size(), c.rest.Len())
	return t
}

// part is rank's part of t[n], which all ranks share equally.
func part(t tensor.Tensor, rank, ranks int) tensor.Tensor {
	n := t.Numel() / ranks
	return t.Rows(rank*n, (rank+1)*n)
}
