package compress

import (
	"math"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// int8s sends a byte an element, from -127 to 127, and for each block of a part an f32
// that they are multiples of. It goes as half does. The rounding of the sums leaves
// something behind as well, which the rank that made it adds to its own.
type int8s struct{}

const blockSize = 256

func (int8s) String() string { return string(Int8) }

func (int8s) keeps(p *param.Param) []shape { return []shape{{"error." + p.Name, p.Shape}} }

// packed is the bytes of a part: the scales, then the elements.
func packed(part int) int { return 4*blocks(part) + part }

func blocks(part int) int { return (part + blockSize - 1) / blockSize }

func (int8s) sizes(l Layout, b *Bucket) sizes {
	n := l.part(b)
	return sizes{send: l.Ranks * packed(n), recv: l.Ranks * packed(n), work: 4 * l.Ranks * n}
}

func (int8s) sent(l Layout, b *Bucket) int64 { return l.exchanged(b, packed(l.part(b))) }

func (x int8s) reduce(c *Compressor, on device.Stream, i int, flat tensor.Tensor) (tensor.Tensor, int64) {
	s, l, b, e := on.(hostStream), c.layout, &c.layout.Buckets[i], c.env
	part := l.part(b)
	size := packed(part)
	send, recv := c.send.Slice(0, l.Ranks*size), c.recv.Slice(0, l.Ranks*size)
	work := floats(c.work, l.Ranks*part)
	sums := work[:part] // once the ranks' own gradients are sent
	d := c.debts(i)
	var given float64

	s.Do("compress: to int8", func() error {
		b.load(work, flat, d)
		given = squares(work)
		for r := range l.Ranks {
			quantise(send.Slice(r*size, (r+1)*size), work[r*part:(r+1)*part])
		}
		d.keep(work)
		return nil
	})
	e.Group.AllToAll(s, recv, send, dtype.U8)
	s.Do("compress: sum of int8", func() error {
		clear(sums)
		for r := range l.Ranks {
			addQuantised(sums, recv.Slice(r*size, (r+1)*size))
		}
		if e.Op == comm.Avg {
			vec.Divide(dtype.F32, device.Of(sums).Bytes(), l.Ranks)
		}
		if !l.Scatter {
			x.round(c, sums, send.Slice(0, size), d)
		}
		c.measure(given, d.squares())
		return nil
	})
	if l.Scatter {
		return tensor.New(device.Of(sums), dtype.F32, part), x.sent(l, b)
	}
	e.Group.AllGather(s, recv, send.Slice(0, size), dtype.U8)
	s.Do("compress: from int8", func() error {
		clear(work)
		for r := range l.Ranks {
			addQuantised(work[r*part:(r+1)*part], recv.Slice(r*size, (r+1)*size))
		}
		b.store(flat, work)
		return nil
	})
	return flat, x.sent(l, b)
}

// round packs this rank's part of the sums, and makes what that leaves behind its own.
func (int8s) round(c *Compressor, sums []float32, to device.Buffer, d debts) {
	quantise(to, sums)
	if c.env.Op == comm.Avg { // a debt is divided again
		vec.Scale(dtype.F32, device.Of(sums).Bytes(), float64(c.layout.Ranks))
	}
	d.owe(c.env.Group.Rank()*len(sums), sums)
}

// quantise packs x into to, and leaves in x what that leaves behind. A block that holds
// something that is not finite becomes NaN as a whole.
func quantise(to device.Buffer, x []float32) {
	n := blocks(len(x))
	scales, bytes := device.View[float32](to.Slice(0, 4*n)), device.View[int8](to.Slice(4*n, to.Len()))
	for k := range n {
		lo, hi := k*blockSize, min((k+1)*blockSize, len(x))
		scales[k] = quantiseBlock(bytes[lo:hi], x[lo:hi])
	}
}

func quantiseBlock(to []int8, x []float32) (scale float32) {
	var most uint32 // as bits, which are in the order of the magnitudes, NaN above all
	for _, v := range x {
		most = max(most, math.Float32bits(v)&^(1<<31))
	}
	scale = math.Float32frombits(most) / 127
	switch {
	case scale-scale != 0:
		clear(to)
		nan := float32(math.NaN())
		for i := range x {
			x[i] = nan
		}
		return nan
	case scale == 0: // nothing there, or less than the smallest number times 127
		clear(to)
		return 0
	}
	// Added to a number below 2^22, it leaves no place for a fraction: the sum is
	// rounded to the nearest integer, ties to even.
	const round = 3 << 22
	for i, v := range x {
		q := float32(float32(v/scale)+round) - round
		q = min(max(q, -127), 127) // where the scale is among the smallest numbers, it is rounded itself
		to[i] = int8(q)
		x[i] = v - float32(q*scale)
	}
	return scale
}

// addQuantised adds what is packed in from to sums.
func addQuantised(sums []float32, from device.Buffer) {
	n := blocks(len(sums))
	scales, bytes := device.View[float32](from.Slice(0, 4*n)), device.View[int8](from.Slice(4*n, from.Len()))
	for k, scale := range scales {
		lo, hi := k*blockSize, min((k+1)*blockSize, len(sums))
		for i, q := range bytes[lo:hi] {
			sums[lo+i] += float32(float32(q) * scale)
		}
	}
}
