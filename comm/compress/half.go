package compress

import (
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

	e.Memory.Convert(s, send.Rows(0, b.Numel), flat)
	if e.Device.Kind() == device.CPU {
		h.measure(c, s.(hostStream), b, flat, send)
	}
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

// measure adds up what the first rounding has cost.
func (h half) measure(c *Compressor, s hostStream, b *Bucket, flat, rounded tensor.Tensor) {
	s.Do("compress: measure", func() error {
		var exact, short [1024]float32
		given, lost := 0.0, 0.0
		for j, p := range b.Params {
			for at, to := b.Offsets[j], b.Offsets[j]+p.Numel(); at < to; at += len(exact) {
				end := min(at+len(exact), to)
				x, y := exact[:end-at], short[:end-at]
				vec.Widen(b.DType, x, flat.Rows(at, end).Buf.Bytes())
				vec.Widen(h.dt, y, rounded.Rows(at, end).Buf.Bytes())
				given += squares(x)
				for i, v := range y {
					x[i] -= v
				}
				lost += squares(x)
			}
		}
		c.measure(given, lost)
		return nil
	})
}
