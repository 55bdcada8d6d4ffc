// Package arith is arithmetic on long arrays in the memory of a CUDA device: what
// collectives, gradient buckets and sharded optimizers do there. It is to GPUs
// what package vec is to the host.
//
// Every operation is enqueued on a stream of the device and returns at once. It
// runs at the speed of the memory where all its arrays are aligned to 16 bytes,
// and slower at other addresses. A rerun gives the same bits.
//
// A stream of something else than CUDA is a mistake of the caller, and panics.
// Other mistakes (sizes that differ, types without arithmetic, host memory) fail
// the stream with an error that names them, as a failed launch does.
package arith

import (
	_ "embed"
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

//go:embed arith.cu
var text string

const threads = 256 // of a block, as arith.cu has it

// types are those with arithmetic.
var types = [...]dtype.DType{dtype.F32, dtype.F64, dtype.F16, dtype.BF16}

// Arith is the kernels, loaded on one device.
type Arith struct {
	dev    *cuda.Device
	module *cuda.Module
	blocks int // that fill the device

	convert, add [dtype.BF16 + 1][dtype.BF16 + 1]*cuda.Function // of destination and source
	checksum     *cuda.Function
}

// New compiles the kernels for dev, or finds them in the cache of the host.
func New(dev *cuda.Device) (*Arith, error) {
	module, err := nvrtc.Module(dev, "arith.cu", text)
	if err != nil {
		return nil, err
	}
	a := &Arith{dev: dev, module: module, blocks: dev.SMs() * (2048 / threads)}
	if err := a.load(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Arith) load() (err error) {
	function := func(name string) *cuda.Function {
		f, e := a.module.Function(name)
		err = errors.Join(err, e)
		return f
	}
	for _, to := range types {
		for _, from := range types {
			a.convert[to][from] = function(fmt.Sprintf("convert_%s_%s", to, from))
			a.add[to][from] = function(fmt.Sprintf("add_%s_%s", to, from))
		}
	}
	a.checksum = function("checksum")
	return err
}

// Close unloads the kernels. No stream may still be running one.
func (a *Arith) Close() error { return a.module.Unload() }

// Clear writes zeros to b.
func (a *Arith) Clear(s device.Stream, b device.Buffer) { s.(*cuda.Stream).Clear(b) }

// Convert writes dst = src, element by element. Both are of floating-point types
// and of one number of elements, and do not overlap. It rounds to nearest, ties
// to even; what is too large becomes an infinity, a NaN stays one. An f64 becomes
// 16 bits by way of f32.
func (a *Arith) Convert(s device.Stream, dst, src tensor.Tensor) {
	a.pair(s, "convert", &a.convert, dst, src)
}

// Add writes dst += src, element by element. Both are of floating-point types and
// of one number of elements; they may be the same memory if they are of one type.
// The sum is made in f32, or in f64 where either type is, and rounded once.
func (a *Arith) Add(s device.Stream, dst, src tensor.Tensor) {
	a.pair(s, "add", &a.add, dst, src)
}

// pair is the argument of kernels that write dst from src.
type pair struct {
	dst, src uintptr
	n        uint64
	chunks   uint32
}

func (a *Arith) pair(s device.Stream, op string, kernels *[dtype.BF16 + 1][dtype.BF16 + 1]*cuda.Function, dst, src tensor.Tensor) {
	stream := s.(*cuda.Stream)
	if err := check(dst, src); err != nil {
		stream.Fail(fmt.Errorf("%s: %s of %s to %s: %w", a.dev, op, src, dst, err))
		return
	}
	args := pair{dst: dst.Buf.Addr(), src: src.Buf.Addr(), n: uint64(dst.Numel()), chunks: chunks(dst, src)}
	per := 16 / max(dst.DType.Size(), src.DType.Size())
	launch(stream, kernels[dst.DType][src.DType], a.grid(args.n, per), &args)
}

type region struct {
	sum, p uintptr
	n      uint64
	chunks uint32
}

// Checksum writes the Checksum of b, as 8 bytes in the host's order, to sum.
func (a *Arith) Checksum(s device.Stream, sum, b device.Buffer) {
	stream := s.(*cuda.Stream)
	if sum.Len() != 8 || sum.OnHost() || sum.Addr()%8 != 0 || b.Len() > 0 && b.OnHost() {
		stream.Fail(fmt.Errorf("%s: checksum of %d bytes (on the host: %t) to %d bytes at %#x (on the host: %t): "+
			"want device memory, and 8 aligned bytes for the sum", a.dev, b.Len(), b.OnHost(), sum.Len(), sum.Addr(), sum.OnHost()))
		return
	}
	stream.Clear(sum)
	args := region{sum: sum.Addr(), p: b.Addr(), n: uint64(b.Len())}
	if args.p%16 == 0 {
		args.chunks = 1
	}
	launch(stream, a.checksum, a.grid(args.n, 16), &args)
}

// launch skips what has nothing to do: a grid without blocks is an error.
func launch[T any](s *cuda.Stream, f *cuda.Function, g cuda.Grid, args *T) {
	if g.Blocks.X > 0 {
		cuda.Launch(s, f, g, args)
	}
}

// grid gives each thread one chunk of per elements, or several where the device
// is full.
func (a *Arith) grid(n uint64, per int) cuda.Grid {
	each := uint64(per * threads)
	blocks := min((n+each-1)/each, uint64(a.blocks))
	return cuda.Grid{Blocks: cuda.Dim{X: int(blocks)}, Threads: cuda.Dim{X: threads}}
}

func check(list ...tensor.Tensor) error {
	for _, t := range list {
		switch {
		case !t.DType.Float():
			return fmt.Errorf("there is no arithmetic for %s", t.DType)
		case t.Numel() != list[0].Numel():
			return errors.New("the numbers of elements differ")
		case t.Numel() > 0 && t.Buf.OnHost():
			return errors.New("host memory: it must be of the device")
		case t.Buf.Addr()%uintptr(t.DType.Size()) != 0:
			return fmt.Errorf("address %#x is not aligned to its type", t.Buf.Addr())
		}
	}
	return nil
}

// chunks is 1 where all tensors are aligned to 16 bytes.
func chunks(list ...tensor.Tensor) uint32 {
	for _, t := range list {
		if t.Buf.Addr()%16 != 0 {
			return 0
		}
	}
	return 1
}
