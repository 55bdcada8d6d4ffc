package vec

import "github.com/gorun-dev/gorun/runtime/dtype"

const (
	// vectorBytes is the granule of kernels: the rest of an array is plain Go's.
	vectorBytes = 64
	// callBytes bounds one call of a kernel. Assembly cannot be preempted: a longer
	// call would hold up the garbage collector of the whole process.
	callBytes = 128 << 10
)

const (
	types = int(dtype.U8) + 1
	ops   = int(Prod) + 1
)

// row holds the kernels dst = a op b of one type.
type row [ops]func(dst, a, b *byte, n int)

// path is a set of kernels. What it lacks is done in plain Go. Sizes n are in
// bytes, multiples of vectorBytes, but for widen and narrow: they count elements,
// multiples of 16.
type path struct {
	name    string
	binary  [types]row
	many    [types]func(dsts, srcs **byte, nd, ns, n int) // sums of two sources or more
	sumBoth func(d0, d1, a, b *byte, n int)
	scale   func(x *byte, n int, f float32)
	divide  func(x *byte, n int, f float32)
	widen   [types]func(dst, src *byte, n int)
	narrow  [types]func(dst, src *byte, n int)
	squares func(lanes *float64, x *byte, n int)
}

// paths are those that this processor can take, the fastest last.
var paths = append([]*path{{name: "go"}}, simdPaths()...)

// active is chosen once, when the program starts; tests choose others.
var active = paths[len(paths)-1]

// Path names the kernels in use: go, avx2 or avx512.
func Path() string { return active.name }
