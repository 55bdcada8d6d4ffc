package zero

import (
	"fmt"
	"slices"

	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// passing is the blocks of stage 3 on their way through the spaces.
type passing struct {
	blocks map[int]*block
	spaces []*space
	inUse  *block // between Use and Done
	turns  int
	// trail is the last two blocks used; follow is what came behind each such pair
	// last time. Pairs tell the directions apart.
	trail  [2]int
	follow map[[2]int]int
	order  uint64 // a hash of the blocks used since the last compareOrders
}

// block is all parameters with one number, frozen ones too.
type block struct {
	buckets []*bucket
	bytes   int
	space   *space // that holds its weights, or is about to; nil: none
}

// space is memory for one block's weights.
type space struct {
	memory   device.Buffer
	block    *block
	gathered device.Event // on the communication stream, which the compute stream has not waited for yet
	freed    device.Event // on the compute stream, behind the last reader
	used     int          // when it was filled or used last
}

// nowhere is no block's number.
const nowhere = -1

func (z *Zero) allocBlocks() error {
	if z.plan.Stage != 3 {
		return nil
	}
	z.blocks, z.follow, z.trail = map[int]*block{}, map[[2]int]int{}, [2]int{nowhere, nowhere}
	for _, b := range slices.Concat(z.buckets, z.frozen) {
		x := z.blocks[b.Block]
		if x == nil {
			x = &block{}
			z.blocks[b.Block] = x
		}
		x.buckets = append(x.buckets, b)
		x.bytes += b.weightBytes()
	}
	for range z.plan.blockSpaces() {
		memory, err := z.shared(&z.held.Buffers, z.plan.largestBlock())
		if err != nil {
			return err
		}
		z.spaces = append(z.spaces, &space{memory: memory})
	}
	return nil
}

func (z *Zero) useBlock(id int) {
	x := z.blocks[id]
	if x == nil {
		return // a block without parameters
	}
	if z.inUse != nil {
		panic(fmt.Sprintf("zero: Use(%d) while block %d is in use: in stage 3 there is memory for one at a time, and for the next", id, z.trail[1]))
	}
	z.order = z.order*31 + uint64(id) + 1
	z.follow[z.trail] = id
	z.trail = [2]int{z.trail[1], id}
	if x.space == nil {
		z.fetch(x)
	}
	z.inUse = x
	z.touch(x.space)
	if e := x.space.gathered; e != nil {
		z.waitFor(e)
		release(e)
		x.space.gathered = nil
	}
	z.prefetch()
}

func (z *Zero) doneBlock(id int) {
	x := z.blocks[id]
	if x == nil {
		return
	}
	if z.inUse != x {
		panic(fmt.Sprintf("zero: Done(%d) of a block that is not in use", id))
	}
	z.inUse = nil
	release(x.space.freed)
	x.space.freed = z.compute.Record()
}

// prefetch gathers the block that is expected next, where it is not there.
func (z *Zero) prefetch() {
	if z.options.NoOverlap {
		return
	}
	next, known := z.follow[z.trail]
	if last, now := z.trail[0], z.trail[1]; !known {
		next = now + 1
		if last > now {
			next = now - 1
		}
	}
	if x := z.blocks[next]; x != nil && x.space == nil {
		z.fetch(x)
	}
}

// fetch gathers x into the space that was not used for longest, behind the last
// reader of what is there.
func (z *Zero) fetch(x *block) {
	var s *space
	for _, y := range z.spaces {
		if (z.inUse == nil || y != z.inUse.space) && (s == nil || y.used < s.used) {
			s = y
		}
	}
	if s.block != nil {
		s.block.space = nil
	}
	if s.freed != nil {
		z.comm.Wait(s.freed)
		release(s.freed)
		s.freed = nil
	}
	s.block, x.space = x, s
	z.touch(s)
	at := 0
	for _, b := range x.buckets {
		z.allGather(b, s.memory.Slice(at, at+b.weightBytes()))
		at += b.weightBytes()
	}
	release(s.gathered)
	s.gathered = z.comm.Record()
}

// compareOrders makes sure that all ranks have used the same blocks in the same order
// since it was called last. Blocks of one size would otherwise be gathered one for
// another, and no other call tell. The host waits for nothing: a difference ends the
// group.
func (z *Zero) compareOrders() {
	if z.plan.Stage != 3 || z.group.Size() == 1 {
		return
	}
	mine, all := []uint64{z.order}, make([]uint64, z.group.Size())
	z.order = 0
	z.group.AllGather(z.hostComm, device.Of(all), device.Of(mine), dtype.I64)
	z.hostComm.(hostStream).Do("zero: compare the order of blocks", func() error {
		for rank, order := range all {
			if order != all[0] {
				err := fmt.Errorf("zero: stage 3: %s uses the model's blocks in another order than %s: each is gathered when it is used, "+
					"so every rank must use the same ones in the same order", agree.Who(z.group, rank), agree.Who(z.group, 0))
				z.group.Abort(err)
				return err
			}
		}
		return nil
	})
}

func (z *Zero) touch(s *space) {
	z.turns++
	s.used = z.turns
}

// forgetBlocks makes the gathered weights stale.
func (z *Zero) forgetBlocks() {
	for _, s := range z.spaces {
		if s.block != nil {
			s.block.space, s.block = nil, nil
		}
	}
}

// gathered is where the bucket of s lies in its block's space.
func (z *Zero) gathered(s *slot) tensor.Tensor {
	x := z.blocks[s.bucket.Block]
	if x != z.inUse {
		panic(fmt.Sprintf("zero: Weight of %s outside of its block's use: Use(%d) must come before", s.Name, s.Block))
	}
	at := 0
	for _, b := range x.buckets {
		if b == s.bucket {
			return tensor.New(x.space.memory.Slice(at, at+b.weightBytes()), b.DType, b.Padded)
		}
		at += b.weightBytes()
	}
	panic("zero: a bucket outside of its block")
}
