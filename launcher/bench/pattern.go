package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// The data are integers in closed form, so small that every type holds them and
// every reduction of them exactly, in whichever order it is done. They depend on
// the rank, the element and a seed, and repeat after a prime number of elements:
// data that arrive at a wrong place, from a wrong rank or from an earlier call are
// found.
const (
	period = 251
	active = 8 // ranks that contribute to an element of a sum or product
)

// pattern is the data of one operation over a number of ranks.
type pattern struct {
	ranks   int
	dt      dtype.DType
	op      comm.Op
	reduces bool
}

// verifiable says whether the results are exact for so many ranks.
func (p pattern) verifiable() error {
	if !p.reduces || p.op != comm.Avg {
		return nil
	}
	exact := 1 << 24
	switch p.dt {
	case dtype.U8:
		exact = 255
	case dtype.BF16:
		exact = 256
	case dtype.F16:
		exact = 2048
	}
	if most := exact / avgMost; p.ranks > most {
		return fmt.Errorf("-o avg of %s can be verified for at most %d ranks, and there are %d: add -c 0 to go without", p.dt, most, p.ranks)
	}
	return nil
}

// avgMost is the largest value of an average.
const avgMost = 5

// value is element i of a rank's source, i below period.
func (p pattern) value(rank, i, seed int) int64 {
	v := int64(i*i+17*rank+29*seed) % period
	if !p.reduces {
		return v
	}
	switch p.op {
	case comm.Sum:
		if !p.contributes(rank, i) {
			return 0
		}
		return 1 + v%7
	case comm.Prod:
		if !p.contributes(rank, i) {
			return 1
		}
		return 1 + v%2
	case comm.Avg:
		mean := 1 + int64(i*i+29*seed)%period%avgMost
		if rank^1 >= p.ranks { // the last of an odd number
			return mean
		}
		return mean + 1 - 2*int64(rank&1)
	}
	return v
}

// contributes picks at most active ranks for an element, and every rank for some.
func (p pattern) contributes(rank, i int) bool {
	stride := (p.ranks + active - 1) / active
	return (rank+i)%stride == 0
}

// reduced is element i of the reduction over all ranks, i below period.
func (p pattern) reduced(i, seed int) int64 {
	out := p.value(0, i, seed)
	for r := 1; r < p.ranks; r++ {
		switch v := p.value(r, i, seed); p.op {
		case comm.Sum, comm.Avg:
			out += v
		case comm.Prod:
			out *= v
		case comm.Min:
			out = min(out, v)
		case comm.Max:
			out = max(out, v)
		}
	}
	if p.op == comm.Avg {
		out /= int64(p.ranks)
	}
	return out
}

// block is a whole number of periods, encoded: the endless array's content.
type block struct {
	bytes []byte
	elem  int // bytes of an element
}

// repeats makes a block about as large as a core's first-level cache, so that
// filling an array costs one write of it.
const repeats = 32

// source is what a rank contributes; rank -1 stands for the reduction.
func (p pattern) source(rank, seed int) block {
	var one []byte
	for i := range period {
		v := int64(0)
		if rank < 0 {
			v = p.reduced(i, seed)
		} else {
			v = p.value(rank, i, seed)
		}
		one = appendValue(one, p.dt, v)
	}
	return block{bytes.Repeat(one, repeats), p.dt.Size()}
}

// appendValue encodes v, in the machine's byte order, which is little-endian on
// all that gorun runs on. v is exact in every type but u8, where it wraps.
func appendValue(b []byte, dt dtype.DType, v int64) []byte {
	le := binary.LittleEndian
	switch dt {
	case dtype.F32:
		return le.AppendUint32(b, math.Float32bits(float32(v)))
	case dtype.F64:
		return le.AppendUint64(b, math.Float64bits(float64(v)))
	case dtype.F16:
		return le.AppendUint16(b, dtype.F16From(float32(v)))
	case dtype.BF16:
		return le.AppendUint16(b, dtype.BF16From(float32(v)))
	case dtype.I32:
		return le.AppendUint32(b, uint32(v))
	case dtype.I64:
		return le.AppendUint64(b, uint64(v))
	case dtype.U8:
		return append(b, byte(v))
	}
	panic(fmt.Sprintf("bench: element type %s", dt))
}

// fill writes the elements from number at on into x.
func (b block) fill(x []byte, at int) {
	next := b.bytes[at%period*b.elem:]
	for len(x) > 0 {
		x = x[copy(x, next):]
		next = b.bytes
	}
}

// wrong counts the elements of x that are not those from number at on.
func (b block) wrong(x []byte, at int) (n int64) {
	next := b.bytes[at%period*b.elem:]
	for len(x) > 0 {
		k := min(len(x), len(next))
		if !bytes.Equal(x[:k], next[:k]) {
			for i := 0; i < k; i += b.elem {
				if !bytes.Equal(x[i:i+b.elem], next[i:i+b.elem]) {
					n++
				}
			}
		}
		x, next = x[k:], b.bytes
	}
	return n
}
