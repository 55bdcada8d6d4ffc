// Package vec is elementwise arithmetic on host memory: what collectives, gradient
// buckets and sharded optimizers do to long arrays.
//
// Arrays are bytes with an element type. They may start at any address and hold
// any number of elements, none included. Lengths that differ or are no multiple
// of the element size are a mistake of the caller, and panic.
//
// On amd64 the work is done by AVX-512 or AVX2 kernels where the processor has
// them. All paths give the same bits, but for the payload of a NaN.
package vec

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Op is how elements of several sources become one. The values are those of
// comm's operations.
type Op uint8

const (
	Sum  Op = iota // integers wrap around
	Avg            // the sum divided by the number of sources, see Divide
	Min            // NaN where an element is NaN
	Max            // NaN where an element is NaN
	Prod           // integers wrap around
)

// blockBytes is how much of each source ReduceMany takes at a time: the partial
// result stays in the first-level cache while all sources pass.
const blockBytes = 8 << 10

// scratch holds a block of partial results; 16-bit elements take twice their
// size in it, and next then holds the next source. lanes are SumSquares', the rest is
// what sums of many sources hand to their kernel.
type scratch struct {
	acc, next  [2 * blockBytes]byte
	lanes      [sumLanes]float64
	to         [1][]byte
	parts      [mostFused][]byte
	dsts, srcs [mostFused]*byte
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Reduce stores a op b in dst, which may be a or b. Avg divides by 2: it is the
// mean of these two sources, so who adds up more of them in several calls uses
// Sum, and Divide at the end. 16-bit floats are rounded once.
func Reduce(dt dtype.DType, op Op, dst, a, b []byte) {
	check(dt, len(dst), a, b)
	if direct(dt, op) {
		binary(dt, op, dst, a, b)
		return
	}
	dsts, srcs := [1][]byte{dst}, [2][]byte{a, b}
	reduceBlocks(dt, op, dsts[:], srcs[:])
}

// ReduceMany combines all sources in their order and stores the result in every
// destination. Each byte of memory is read once and written once. A destination
// may be one of the sources. 16-bit floats accumulate in float32 over all
// sources and are rounded once.
func ReduceMany(dt dtype.DType, op Op, dsts, srcs [][]byte) {
	if len(dsts) == 0 || len(srcs) == 0 {
		panic(fmt.Sprintf("vec: ReduceMany of %d sources into %d destinations", len(srcs), len(dsts)))
	}
	check(dt, len(dsts[0]), dsts...)
	check(dt, len(dsts[0]), srcs...)
	if len(srcs) == 1 {
		for _, d := range dsts {
			copy(d, srcs[0])
		}
		return
	}
	switch {
	case len(srcs) == 2 && len(dsts) == 2 && dt == dtype.F32 && op == Sum:
		sumBoth(dsts[0], dsts[1], srcs[0], srcs[1])
	case len(srcs) == 2 && direct(dt, op):
		reducePair(dt, op, dsts, srcs[0], srcs[1])
	case fuses(dt, op) && len(srcs) <= mostFused && len(dsts) <= mostFused:
		s := scratches.Get().(*scratch)
		defer scratches.Put(s)
		s.sumMany(dt, dsts, srcs)
	default:
		reduceBlocks(dt, op, dsts, srcs)
	}
}

// reducePair needs no memory for partial results: there are none.
func reducePair(dt dtype.DType, op Op, dsts [][]byte, a, b []byte) {
	n := len(a)
	if len(dsts) > 1 {
		n = blockBytes // still in the cache when it is copied
	}
	for lo := 0; lo < len(a); lo += n {
		hi := min(lo+n, len(a))
		binary(dt, op, dsts[0][lo:hi], a[lo:hi], b[lo:hi])
		for _, d := range dsts[1:] {
			copy(d[lo:hi], dsts[0][lo:hi])
		}
	}
}

// reduceBlocks reads a block of every source before it writes the block of any
// destination, so that destinations may be sources.
func reduceBlocks(dt dtype.DType, op Op, dsts, srcs [][]byte) {
	fold := op
	if op == Avg {
		fold = Sum
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	for lo := 0; lo < len(dsts[0]); lo += blockBytes {
		hi := min(lo+blockBytes, len(dsts[0]))
		var acc []byte
		accType := dt
		if half(dt) {
			accType = dtype.F32
			acc = s.acc[:2*(hi-lo)]
			next := s.next[:2*(hi-lo)]
			widen(dt, acc, srcs[0][lo:hi])
			for _, src := range srcs[1:] {
				widen(dt, next, src[lo:hi])
				binary(dtype.F32, fold, acc, acc, next)
			}
		} else {
			acc = s.acc[:hi-lo]
			s.fold(dt, fold, acc, srcs, lo)
		}
		if op == Avg {
			divide(accType, acc, len(srcs))
		}
		if half(dt) {
			narrow(dt, dsts[0][lo:hi], acc)
		} else {
			copy(dsts[0][lo:hi], acc)
		}
		for _, d := range dsts[1:] {
			copy(d[lo:hi], dsts[0][lo:hi])
		}
	}
}

// check panics unless all arrays have n bytes, whole elements of dt.
func check(dt dtype.DType, n int, arrays ...[]byte) {
	size := dt.Size()
	if size == 0 {
		panic(fmt.Sprintf("vec: no arithmetic on %v", dt))
	}
	if n%size != 0 {
		panic(fmt.Sprintf("vec: %d bytes are no whole number of %v elements", n, dt))
	}
	for _, a := range arrays {
		if len(a) != n {
			panic(fmt.Sprintf("vec: arrays of %d and %d bytes", n, len(a)))
		}
	}
}

// view sees bytes as elements. The address need not be a multiple of the element
// size: the processors we build for load and store at any address.
func view[T any](b []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(zero)))
}

func bytesOf[T any](s []T) []byte {
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(zero)))
}
