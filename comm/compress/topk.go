package compress

import (
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// topK sends the largest elements of each parameter, or of what each rank's part has of
// it, with their places. The number does not depend on the values, so that all ranks
// know it.
type topK struct{ fraction float64 }

func (x topK) String() string { return fmt.Sprintf("%s %g", TopK, x.fraction) }

func (topK) keeps(p *param.Param) []shape { return []shape{{"error." + p.Name, p.Shape}} }

// stretch is elements [from, to) of a bucket, which belong to one parameter, of which
// the k largest are sent.
type stretch struct{ from, to, k int }

// stretches cuts the parameters of b where parts begin. All parts send as many
// entries as the one with the most.
func (x topK) stretches(l Layout, b *Bucket) (parts [][]stretch, entries int) {
	n, size := 1, b.Numel
	if l.Scatter {
		n, size = l.Ranks, l.part(b)
	}
	parts = make([][]stretch, n)
	for r := range parts {
		sum := 0
		for j, p := range b.Params {
			from, to := max(b.Offsets[j], r*size), min(b.Offsets[j]+p.Numel(), (r+1)*size)
			if from >= to {
				continue
			}
			k := min(max(int(math.Ceil(x.fraction*float64(to-from)-1e-9)), 1), to-from)
			parts[r] = append(parts[r], stretch{from, to, k})
			sum += k
		}
		entries = max(entries, sum)
	}
	return parts, entries
}

// An entry is the element's place in its part, u32, and its value, f32. The places of a
// message come first.
const entryBytes = 8

func (x topK) sizes(l Layout, b *Bucket) sizes {
	parts, entries := x.stretches(l, b)
	return sizes{send: entryBytes * len(parts) * entries, recv: entryBytes * l.Ranks * entries, work: 4 * b.Numel}
}

func (x topK) sent(l Layout, b *Bucket) int64 {
	_, entries := x.stretches(l, b)
	return int64(l.Ranks-1) * entryBytes * int64(entries)
}

func (x topK) reduce(c *Compressor, on device.Stream, i int, flat tensor.Tensor) (tensor.Tensor, int64) {
	s, l, b, e := on.(hostStream), c.layout, &c.layout.Buckets[i], c.env
	parts, entries := x.stretches(l, b)
	size := entryBytes * entries
	send, recv := c.send.Slice(0, len(parts)*size), c.recv.Slice(0, l.Ranks*size)
	work := floats(c.work, b.Numel)
	sums := work
	if l.Scatter {
		sums = work[:l.part(b)]
	}
	d := c.debts(i)

	s.Do("compress: the largest", func() error {
		b.load(work, flat, d)
		given := squares(work)
		for r, list := range parts {
			pick(entriesOf(send.Slice(r*size, (r+1)*size)), work, r*len(sums), list)
		}
		d.keep(work)
		c.measure(given, d.squares())
		return nil
	})
	if l.Scatter {
		e.Group.AllToAll(s, recv, send, dtype.U8)
	} else {
		e.Group.AllGather(s, recv, send, dtype.U8)
	}
	s.Do("compress: sum of the largest", func() error {
		clear(sums)
		for r := range l.Ranks {
			from := entriesOf(recv.Slice(r*size, (r+1)*size))
			for i, at := range from.places {
				sums[at] += from.values[i]
			}
		}
		if e.Op == comm.Avg {
			vec.Divide(dtype.F32, device.Of(sums).Bytes(), l.Ranks)
		}
		if !l.Scatter {
			b.store(flat, sums)
		}
		return nil
	})
	if l.Scatter {
		return tensor.New(device.Of(sums), dtype.F32, len(sums)), x.sent(l, b)
	}
	return flat, x.sent(l, b)
}

// entries is a message.
type entries struct {
	places []uint32
	values []float32
}

func entriesOf(b device.Buffer) entries {
	half := b.Len() / 2
	return entries{device.View[uint32](b.Slice(0, half)), device.View[float32](b.Slice(half, b.Len()))}
}

// pick moves the largest elements of each stretch of x to to, as places counted from
// base; what is finite of them is then zero in x. Entries that are left over are zeros.
func pick(to entries, x []float32, base int, list []stretch) {
	n := 0
	for _, t := range list {
		v := x[t.from:t.to]
		limit, ties := threshold(v, t.k)
		for i, y := range v {
			m := magnitude(y)
			if m < limit || m == limit && ties == 0 {
				continue
			}
			if m == limit {
				ties--
			}
			to.places[n], to.values[n] = uint32(t.from+i-base), y
			n++
			if y-y == 0 {
				v[i] = 0
			}
		}
	}
	clear(to.places[n:])
	clear(to.values[n:])
}

// magnitude orders as absolute values do, with NaN above infinity.
func magnitude(x float32) uint32 { return math.Float32bits(x) &^ (1 << 31) }

// threshold is the magnitude of the k-th largest element of x, and how many of that
// magnitude are among the k largest: the first ones. It finds the magnitude's bits
// from above, by counting.
func threshold(x []float32, k int) (limit uint32, ties int) {
	known := uint32(0) // which bits of limit are
	for shift := 31; shift > 0; {
		bits := min(shift, 11)
		shift -= bits
		var count [1 << 11]int
		for _, v := range x {
			if m := magnitude(v); m&known == limit {
				count[m>>shift&(1<<bits-1)]++
			}
		}
		digit := 1<<bits - 1
		for ; count[digit] < k; digit-- {
			k -= count[digit]
		}
		limit |= uint32(digit) << shift
		known |= (1<<bits - 1) << shift
	}
	return limit, k
}
