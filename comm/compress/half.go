package compress

import (
	"fmt"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// half sends 16 bits an element: AllToAll of the parts, their sum in f32 in the order
// of the ranks, and where all ranks get all of it, AllGather of the rounded sums.
type half struct{ dt dtype.DType }

func (h half) String() string {
	if h.dt == dtype.F16 {
		return string(FP16)
	}
	return string(BF16)
}

func (half) keeps(*param.Param) []shape { return nil }

func (half) sizes(l Layout, b *Bucket) sizes {
	part := l.part(b)
	return sizes{send: 2 * l.Ranks * part, recv: 2 * l.Ranks * part, work: 4 * part}
}

func (half) sent(l Layout, b *Bucket) int64 { return l.exchanged(b, 2*l.part(b)) }

// exchanged is what a rank sends where each part of b is so many bytes long.
func (l Layout) exchanged(b *Bucket, part int) int64 {
	n := int64(l.Ranks-1) * int64(part)
	if !l.Scatter {
		n *= 2
	}
	return n
}

func (h half) reduce(c *Compressor, s device.Stream, i int, flat tensor.Tensor) (tensor.Tensor, int64) {
	l, b, e := c.layout, &c.layout.Buckets[i], c.env
	part := l.part(b)
	send := tensor.New(c.send.Slice(0, 2*l.Ranks*part), h.dt, l.Ranks*part)
	recv := tensor.New(c.recv.Slice(0, 2*l.Ranks*part), h.dt, l.Ranks*part)
	sums := tensor.New(c.work.Slice(0, 4*part), dtype.F32, part)

	h.measure(c, s, i, flat)
	e.Memory.Convert(s, send.Rows(0, b.Numel), flat)
	e.Group.AllToAll(s, recv.Buf, send.Buf, h.dt)
	e.Memory.Convert(s, sums, recv.Rows(0, part))
	for r := 1; r < l.Ranks; r++ {
		e.Memory.Add(s, sums, recv.Rows(r*part, (r+1)*part))
	}
	if e.Op == comm.Avg {
		s.(hostStream).Do("compress: mean", func() error {
			vec.Divide(dtype.F32, sums.Buf.Bytes(), l.Ranks)
			return nil
		})
	}
	if l.Scatter {
		return sums, h.sent(l, b)
	}
	mine := send.Rows(0, part)
	e.Memory.Convert(s, mine, sums)
	e.Group.AllGather(s, recv.Buf, mine.Buf, h.dt)
	e.Memory.Convert(s, flat, recv.Rows(0, b.Numel))
	return flat, h.sent(l, b)
}

// sampleSize is how many elements of each bucket show the error of rounding where the
// gradients are in a GPU's memory.
const sampleSize = 4096

// measure adds up what the first rounding costs: on the host at once, of all elements; of
// a GPU's memory the first ones are brought to the host, where Stats looks at them.
func (h half) measure(c *Compressor, s device.Stream, i int, flat tensor.Tensor) {
	b := &c.layout.Buckets[i]
	if on, host := s.(hostStream); host && c.env.Device.Kind() == device.CPU {
		on.Do("compress: measure", func() error {
			c.measure(h.lost(b, flat))
			return nil
		})
		return
	}
	if b.DType == h.dt { // nothing is rounded
		return
	}
	x := c.samples[i]
	s.Copy(x.Tensor.Buf, flat.Rows(0, x.Numel()).Buf)
	c.mu.Lock()
	defer c.mu.Unlock()
	x.fresh = true
}

// lost is the squares of the first elements of a bucket, and of what rounding takes of
// them.
func (h half) lost(b *Bucket, x tensor.Tensor) (given, lost float64) {
	var exact, rounded [1024]float32
	var short [2 * len(exact)]byte
	for j, p := range b.Params {
		for at, to := b.Offsets[j], min(b.Offsets[j]+p.Numel(), x.Numel()); at < to; at += len(exact) {
			n := min(len(exact), to-at)
			v, w := exact[:n], rounded[:n]
			vec.Widen(b.DType, v, x.Rows(at, at+n).Buf.Bytes())
			vec.Narrow(h.dt, short[:2*n], v)
			vec.Widen(h.dt, w, short[:2*n])
			given += squares(v)
			for i, y := range w {
				v[i] -= y
			}
			lost += squares(v)
		}
	}
	return given, lost
}

// sample is the first elements of a bucket, on their way to the host or there.
type sample struct {
	tensor.Tensor
	fresh bool // not looked at; guarded by the Compressor's mu
}

// openSamples gets the memory of the samples.
func (h half) openSamples(c *Compressor) error {
	n := 0
	for _, b := range c.layout.Buckets {
		n += min(b.Numel, sampleSize) * b.DType.Size()
	}
	memory, err := c.env.Pinned(n)
	if err != nil {
		return fmt.Errorf("compress: %d bytes of host memory for samples of the gradients: %w", n, err)
	}
	c.samples = nil
	for _, b := range c.layout.Buckets {
		k := min(b.Numel, sampleSize)
		c.samples = append(c.samples, &sample{Tensor: tensor.New(memory.Slice(0, k*b.DType.Size()), b.DType, k)})
		memory = memory.Slice(k*b.DType.Size(), memory.Len())
	}
	return nil
}

// look measures the samples that have come.
func (h half) look(c *Compressor) {
	for i, x := range c.samples {
		if x.fresh {
			x.fresh = false
			c.add(h.lost(&c.layout.Buckets[i], x.Tensor))
		}
	}
}
