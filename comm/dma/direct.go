package dma

import (
	"fmt"
	"slices"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

// directArgs is Direct of direct.cu.
type directArgs struct {
	src, dst, flags    [MaxRanks]uintptr
	bytes              int64
	watch              watch
	me, ranks, op, all int32
}

// Reaches reports whether Direct makes the call: an AllReduce whose arrays lie in memory
// from Alloc, or a ReduceScatter whose src does, aligned to 16 bytes, of f32, f16 or bf16. dst
// of a ReduceScatter may be any memory. It may be called from any goroutine.
func (t *Team) Reaches(c *Call) bool {
	if !slices.Contains(gradients, c.DType) {
		return false
	}
	ok := func(b device.Buffer) bool {
		_, _, ok := t.Where(b)
		return ok && b.Addr()%16 == 0
	}
	switch c.Kind {
	case transport.AllReduce:
		return ok(c.From) && (c.To.Addr() == c.From.Addr() || ok(c.To))
	case transport.ReduceScatter:
		return ok(c.From) && c.To.Len()%16 == 0
	}
	return false
}

// Direct carries out an AllReduce or a ReduceScatter by a kernel that reads the other
// GPUs' arrays where they are, and writes the sums to where they belong. All operations;
// sums as Exchange's. All ranks give the same places, but for dst of a
// ReduceScatter, which nobody checks: the same offsets in memory of the same Allocs. It
// enqueues on s and returns.
func (t *Team) Direct(s *cuda.Stream, c *Call) error {
	if !t.Reaches(c) {
		return fmt.Errorf("kernels between GPUs: %s: want f32, f16 or bf16 in memory of the team, aligned to 16 bytes", c.Header)
	}
	t.enqueuing.Lock()
	defer t.enqueuing.Unlock()
	if err := t.going(s); err != nil || c.From.Len() == 0 {
		return err
	}
	a, g := &t.direct, t.grid(Flagged, c.From.Len()/t.size)
	t.calls++
	*a = directArgs{
		watch: t.stamped(g.Blocks.X),
		me:    int32(t.me), ranks: int32(t.size), op: int32(c.Op),
	}
	from, to := t.me*c.To.Len(), 0 // where this rank's part begins
	a.bytes = int64(c.To.Len())
	if c.Kind == transport.AllReduce {
		const unit = 16
		n := c.From.Len()
		part := ((n+t.size-1)/t.size + unit - 1) / unit * unit
		from, a.all = min(t.me*part, n), 1
		to, a.bytes = from, int64(min((t.me+1)*part, n)-from)
	}
	src, dst := t.everywhere(c.From), t.everywhere(c.To)
	for r := range t.size {
		a.flags[r] = t.box.ranks[r].Addr()
		a.src[r], a.dst[r] = src[r]+uintptr(from), dst[r]+uintptr(to)
	}
	a.dst[t.me] = c.To.Addr() + uintptr(to)
	t.machine.launch(s, t.kernels["direct_"+c.DType.String()], g, a)
	t.mark(s, t.calls)
	return s.Err()
}

// everywhere is the place of b in each rank's memory, as this GPU sees it; zeros where b
// is not memory of the team.
func (t *Team) everywhere(b device.Buffer) (at [MaxRanks]uintptr) {
	region, _, offset, ok := t.find(b)
	if !ok {
		return at
	}
	for r, m := range region.ranks {
		at[r] = m.Addr() + uintptr(offset)
	}
	return at
}
