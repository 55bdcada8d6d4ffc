package compress

import (
	"fmt"
	"sync"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Compressor is a Hook with one of the package's schemes. New makes it.
type Compressor struct {
	scheme scheme
	env    Env
	layout Layout
	opened bool
	kept   kept
	errors [][]*slot // what is left behind of each bucket's parameters; nil where a scheme leaves nothing
	// One bucket after the other uses these. send and recv travel.
	send, recv, work device.Buffer

	samples []*sample // of a GPU's gradients in each bucket; see half.measure

	mu    sync.Mutex // guards stats, which the stream adds to
	stats Stats
}

var _ Hook = (*Compressor)(nil)

// scheme is what schemes differ in.
type scheme interface {
	String() string
	// keeps lists what stays of p from step to step. What is left behind comes first.
	keeps(p *param.Param) []shape
	// sizes is what b takes while it is reduced.
	sizes(l Layout, b *Bucket) sizes
	// sent is what a rank sends for b.
	sent(l Layout, b *Bucket) int64
	// reduce is Hook.Reduce.
	reduce(c *Compressor, s device.Stream, i int, flat tensor.Tensor) (tensor.Tensor, int64)
}

// sizes are bytes of the Compressor's buffers.
type sizes struct{ send, recv, work int }

// stepper is a scheme that counts steps.
type stepper interface {
	begin(k *kept)
	counter() shape
}

func (c *Compressor) String() string { return c.scheme.String() }

func (c *Compressor) Cost(l Layout) (cost Cost) {
	if l.Ranks == 1 {
		return cost // nothing travels
	}
	for i := range l.Buckets {
		b := &l.Buckets[i]
		cost.Sent += c.scheme.sent(l, b)
		cost.Plain += l.plain(b)
	}
	for _, x := range c.keeps(l) {
		cost.State += 4 * int64(x.numel())
	}
	most := c.most(l)
	cost.Memory = 2*cost.State + int64(most.send) + int64(most.recv) + int64(most.work)
	return cost
}

// keeps lists what stays from step to step of all parameters.
func (c *Compressor) keeps(l Layout) (list []shape) {
	for _, b := range l.Buckets {
		for _, p := range b.Params {
			list = append(list, c.scheme.keeps(p)...)
		}
	}
	if s, ok := c.scheme.(stepper); ok {
		list = append(list, s.counter())
	}
	return list
}

// most is what the largest buckets take.
func (c *Compressor) most(l Layout) (most sizes) {
	for i := range l.Buckets {
		s := c.scheme.sizes(l, &l.Buckets[i])
		most.send, most.recv, most.work = max(most.send, s.send), max(most.recv, s.recv), max(most.work, s.work)
	}
	return most
}

// Open refuses gradients that the scheme cannot work on, by name.
func (c *Compressor) Open(e Env, l Layout) error {
	if c.opened && (e.Group != c.env.Group || !c.kept.same(c.keeps(l))) {
		return fmt.Errorf("compress: %s is at work already: each ddp or zero needs a compressor of its own", c)
	}
	if _, is := c.scheme.(half); !is && e.Device.Kind() != device.CPU {
		return fmt.Errorf("compress: %s works on host memory, and gradients lie in memory of %s: use %s or %s", c, e.Device, FP16, BF16)
	}
	if e.Op != comm.Sum && e.Device.Kind() != device.CPU {
		return fmt.Errorf("compress: %s in memory of %s can make sums alone, not %s: scale the loss instead", c, e.Device, e.Op)
	}
	for _, b := range l.Buckets {
		if !short(b.DType) {
			return fmt.Errorf("compress: gradients of %s in %s: %s takes f32, bf16 or f16", b.Params[0].Name, b.DType, c)
		}
	}
	c.env, c.layout, c.opened = e, l, true
	if h, is := c.scheme.(half); is && e.Device.Kind() != device.CPU {
		if err := h.openSamples(c); err != nil {
			return err
		}
	}
	if err := c.openKept(); err != nil {
		return err
	}
	most := c.most(l)
	for _, x := range []struct {
		to  *device.Buffer
		n   int
		get func(int) (device.Buffer, error)
	}{{&c.send, most.send, e.Shared}, {&c.recv, most.recv, e.Shared}, {&c.work, most.work, e.Private}} {
		if x.to.Len() >= x.n {
			continue
		}
		b, err := x.get(x.n)
		if err != nil {
			return fmt.Errorf("compress: a buffer of %d bytes for %s: %w", x.n, c, err)
		}
		*x.to = b
	}
	return nil
}

// openKept gets the memory of what stays from step to step, once, and finds each
// bucket's part of it.
func (c *Compressor) openKept() error {
	if list := c.keeps(c.layout); c.kept.list == nil && len(list) > 0 {
		n := 0
		for _, x := range list {
			n += 8 * x.numel()
		}
		memory, err := c.env.Private(n)
		if err != nil {
			return fmt.Errorf("compress: %d bytes for what %s keeps from step to step: %w", n, c, err)
		}
		for _, x := range list {
			n := 8 * x.numel()
			c.kept.add(x, memory.Slice(0, n))
			memory = memory.Slice(n, memory.Len())
		}
	}
	c.errors = nil
	for _, b := range c.layout.Buckets {
		slots := make([]*slot, len(b.Params))
		for j, p := range b.Params {
			if list := c.scheme.keeps(p); len(list) > 0 {
				slots[j] = c.kept.named[list[0].name]
			}
		}
		c.errors = append(c.errors, slots)
	}
	return nil
}

func (c *Compressor) Begin() {
	c.kept.settle()
	if s, ok := c.scheme.(stepper); ok {
		s.begin(&c.kept)
	}
}

func (c *Compressor) Reduce(s device.Stream, i int, flat tensor.Tensor) (tensor.Tensor, int64) {
	b := &c.layout.Buckets[i]
	total, sent := c.scheme.reduce(c, s, i, flat)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Plain += c.layout.plain(b)
	if total.None() {
		c.stats.Sent += c.layout.plain(b)
	}
	c.stats.Sent += sent
	return total, sent
}

// Discard takes back what the last window has changed in what is kept from step to
// step. It is for a step that is skipped, on every rank alike: the host calls it behind
// Finish, and before the next StepBegin or State. Then the compressor is as if there
// had been no such step.
func (c *Compressor) Discard() { c.kept.discard() }

// State lists what is kept from step to step, f32 in host memory: what the parameter
// NAME still owes the other ranks (error.NAME, of its shape), and of PowerSGD the last
// Q of each matrix, transposed (q.NAME), and the number of steps (steps). All but the
// errors is the same on every rank. Empty before Open, and for FP16 and BF16.
//
// The tensors are views, up to date once the stream has passed the last Reduce, and
// until the next Begin. Whoever writes to them before the first step goes on where
// another run has stopped; a run that does not begins with zeros, as if its debts were
// paid, which costs what the last step before left behind.
func (c *Compressor) State() []State {
	c.kept.settle()
	return c.kept.state()
}

// short are the types that an f32 holds exactly.
func short(dt dtype.DType) bool { return dt == dtype.F32 || dt == dtype.BF16 || dt == dtype.F16 }
