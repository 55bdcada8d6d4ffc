package zero

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Memory is what a rank holds, in bytes, padding included.
type Memory struct {
	Weights   int64 // in the types that the model computes with; all of them, or in stage 3 this rank's
	Gradients int64 // stage 1: all of them; 2 and 3: this rank's, in f32
	Masters   int64 // of weights that are not f32: those are their own masters
	Buffers   int64 // the bucket buffers of stages 2 and 3, the blocks of stage 3, and what ReduceDType takes
	Compress  int64 // what Options.Compress takes: two f32 for each element of all gradients, where it keeps what it leaves behind
	Moments   int64 // two f32 for each element of Shards: the optimizer's own, and not allocated here
}

// Total is the sum of it all.
func (m Memory) Total() int64 {
	return m.Weights + m.Gradients + m.Masters + m.Buffers + m.Compress + m.Moments
}

// Sent is how many bytes a rank sends, by kind of collective, padding included. It
// is computed from the messages: (n-1)/n of each at n ranks, as rings and direct
// exchanges do; of compressed gradients it is what Options.Compress says.
type Sent struct{ ReduceScatter, AllGather int64 }

// Total is the sum of both.
func (s Sent) Total() int64 { return s.ReduceScatter + s.AllGather }

// Memory is what each rank will hold.
func (p *Plan) Memory() (m Memory) {
	n := int64(p.Ranks)
	for i := range p.Buckets {
		b := &p.Buckets[i]
		size := int64(b.Padded)
		m.Weights += size * int64(b.DType.Size())
		m.Moments += 8 * int64(b.owned(0, p.Ranks)) // the first rank's: it has the least padding
		if b.DType != dtype.F32 {
			m.Masters += 4 * size / n
		}
		if p.Stage == 1 {
			m.Gradients += size * int64(b.GradDType.Size())
		} else {
			m.Gradients += 4 * size / n
		}
	}
	for i := range p.Frozen {
		m.Weights += int64(p.Frozen[i].Padded * p.Frozen[i].DType.Size())
	}
	if p.Stage == 3 {
		m.Weights /= n
		m.Buffers += int64(p.blockSpaces() * p.largestBlock())
	}
	if p.Stage > 1 {
		for _, n := range p.bucketBuffers() {
			m.Buffers += int64(n)
		}
	}
	m.Buffers += int64(p.largestWire())
	if p.hook != nil {
		m.Compress = p.hook.Cost(p.Layout()).Memory
	}
	return m
}

// owned counts the elements that rank has of the bucket's parameters.
func (b *Bucket) owned(rank, ranks int) (n int) {
	for i := range b.Params {
		from, to, _ := b.held(i, rank, ranks)
		n += to - from
	}
	return n
}

// Sent is what a rank sends for an optimizer step of a number of micro-steps. In
// stage 3 that depends on the order in which blocks are used, which is taken to be that
// of a decoder: see fetches.
func (p *Plan) Sent(micro int) (s Sent) {
	reductions := int64(1)
	if p.Stage > 1 {
		reductions = int64(micro)
	}
	if p.hook != nil {
		s.ReduceScatter = reductions * p.hook.Cost(p.Layout()).Sent
	} else {
		for i := range p.Buckets {
			s.ReduceScatter += reductions * p.sent(&p.Buckets[i], p.wireDType(p.Buckets[i].GradDType))
		}
	}
	if p.Stage < 3 {
		for i := range p.Buckets {
			s.AllGather += p.sent(&p.Buckets[i], p.Buckets[i].DType)
		}
		return s
	}
	times := p.fetches(micro)
	for _, b := range slices.Concat(p.Buckets, p.Frozen) {
		s.AllGather += times[b.Block] * p.sent(&b, b.DType)
	}
	return s
}

// fetches is how often each block is gathered in a step of stage 3 whose passes go
// through all blocks forward, use the first tied one again, as the head, and go back.
// The last blocks of a pass stay for the next one, and so cost nothing there.
func (p *Plan) fetches(micro int) map[int]int64 {
	there := slices.Sorted(maps.Keys(p.blockBytes()))
	pass := slices.Clone(there)
	for _, b := range p.Buckets {
		if b.Tied {
			pass = append(pass, b.Block)
			break
		}
	}
	for _, block := range slices.Backward(there) {
		pass = append(pass, block)
	}
	times := map[int]int64{}
	var held []int // the latest last
	for range micro {
		for _, block := range pass {
			if i := slices.Index(held, block); i >= 0 {
				held = slices.Delete(held, i, i+1)
			} else {
				times[block]++
			}
			held = append(held, block)
			held = held[max(0, len(held)-p.blockSpaces()):]
		}
	}
	return times
}

// Layout is the trainable buckets as a compress.Hook sees them.
func (p *Plan) Layout() compress.Layout {
	l := compress.Layout{Ranks: p.Ranks, Scatter: true}
	for _, b := range p.Buckets {
		l.Buckets = append(l.Buckets, compress.Bucket{DType: b.GradDType, Numel: b.Padded, Params: b.Params, Offsets: b.Offsets})
	}
	return l
}

// sent is what a rank sends of bucket b in type dt.
func (p *Plan) sent(b *Bucket, dt dtype.DType) int64 {
	return int64(b.shard(p.Ranks) * (p.Ranks - 1) * dt.Size())
}

// wireDType is the type in which gradients travel; one rank's do not.
func (p *Plan) wireDType(grad dtype.DType) dtype.DType {
	if p.reduce != dtype.Invalid && p.Ranks > 1 {
		return p.reduce
	}
	return grad
}

// bucketBuffers is the sizes of the buffers in stages 2 and 3: of the two that rotate
// through the buckets, where a single bucket has nothing to rotate with, and behind
// them of each tied bucket's own.
func (p *Plan) bucketBuffers() (sizes []int) {
	rotating, largest := 0, 0
	var own []int
	for i := range p.Buckets {
		if b := &p.Buckets[i]; b.Tied {
			own = append(own, b.gradBytes())
		} else {
			rotating, largest = rotating+1, max(largest, b.gradBytes())
		}
	}
	for range min(2, rotating) {
		sizes = append(sizes, largest)
	}
	return append(sizes, own...)
}

// largestWire is the buffer in which gradients are converted to ReduceDType.
func (p *Plan) largestWire() (most int) {
	for _, b := range p.Buckets {
		if dt := p.wireDType(b.GradDType); dt != b.GradDType {
			most = max(most, b.Padded*dt.Size())
		}
	}
	return most
}

// blockBytes is the size of each block's gathered weights, in stage 3.
func (p *Plan) blockBytes() map[int]int {
	sizes := map[int]int{}
	for _, b := range slices.Concat(p.Buckets, p.Frozen) {
		sizes[b.Block] += b.weightBytes()
	}
	return sizes
}

func (p *Plan) largestBlock() (most int) {
	for _, n := range p.blockBytes() {
		most = max(most, n)
	}
	return most
}

// blockSpaces is how many blocks are gathered at a time: the one in use and the next.
func (p *Plan) blockSpaces() int { return min(2, len(p.blockBytes())) }

func (b *Bucket) gradBytes() int   { return b.Padded * b.GradDType.Size() }
func (b *Bucket) weightBytes() int { return b.Padded * b.DType.Size() }

// Hash is 16 hexadecimal digits over everything that String shows and each
// parameter's place.
func (p *Plan) Hash() string {
	h := sha256.New()
	fmt.Fprintf(h, "stage %d, %d ranks, reduced in %s, %d buckets\n", p.Stage, p.Ranks, p.reduce, len(p.Buckets))
	if p.hook != nil {
		fmt.Fprintf(h, "compressed by %s\n", p.hook)
	}
	for i, b := range slices.Concat(p.Buckets, p.Frozen) {
		fmt.Fprintf(h, "%d %s %s %d %t\n", i, b.DType, b.GradDType, b.Padded, b.Tied)
		for j, q := range b.Params {
			fmt.Fprintf(h, "%q %v %d\n", q.Name, q.Shape, b.Offsets[j])
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// String is a table of the buckets, a line each, in the order of reduction, the
// frozen ones last.
func (p *Plan) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "shard plan %s: ZeRO stage %d, %d ranks", p.Hash(), p.Stage, p.Ranks)
	if p.hook != nil {
		fmt.Fprintf(&out, ", gradients compressed by %s", p.hook)
	}
	fmt.Fprintln(&out)
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "bucket\tweights\tgradients\telements\ta rank's\tparameters\t  first … last")
	for i, b := range slices.Concat(p.Buckets, p.Frozen) {
		names := b.Params[0].Name
		if n := len(b.Params); n > 1 {
			names += " … " + b.Params[n-1].Name
		}
		if b.Tied {
			names += " (tied)"
		}
		name, grad, held := fmt.Sprint(i), b.GradDType.String(), b.shard(p.Ranks)
		if i >= len(p.Buckets) {
			name, grad = "frozen", "-"
			if p.Stage < 3 {
				held = b.Padded // each rank has all of them
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t  %s\n", name, b.DType, grad, b.Numel, held, len(b.Params), names)
	}
	w.Flush() // writes to memory: no error is possible
	return out.String()
}
