package dma

import (
	_ "embed"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

//go:embed sum.cu
var text string

// blocks of the kernel: enough for most of the memory's speed, few enough to leave the
// multiprocessors to the computation beside it.
const blocks, threads = 64, 512

// sumArgs is the kernel's parameter, as in sum.cu.
type sumArgs struct {
	dst    uintptr
	src    [MaxRanks]uintptr // in the order of the ranks
	n      int64
	ranks  int32
	factor float32
}

// add writes to dst the sum of own, this rank's part, and of what the peers sent. The
// two may be the same.
func (t *Team) add(s *cuda.Stream, dst, own device.Buffer, dt dtype.DType, avg bool) {
	if own.Len() == 0 {
		return
	}
	a := sumArgs{dst: dst.Addr(), n: int64(own.Len() / dt.Size()), ranks: int32(t.size), factor: 1}
	if avg {
		a.factor = 1 / float32(t.size)
	}
	for p := range t.size {
		a.src[p] = t.slot(t.me, p, 0).Addr()
	}
	a.src[t.me] = own.Addr()
	t.machine.launch(s, t.sums[dt], cuda.Grid{Blocks: cuda.Dim{X: blocks}, Threads: cuda.Dim{X: threads}}, &a)
}
