// Package arrays computes on gradients and weights where they lie: on the CPU by Go
// functions on its streams, on a GPU by kernels (runtime/cuda/arith).
package arrays

import (
	"encoding/binary"
	"fmt"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/arith"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// Memory is memory of one device. All but Close enqueue on s, which is a stream of that
// device, and return at once.
type Memory interface {
	// Clear writes zeros to b.
	Clear(s device.Stream, b device.Buffer)
	// Convert writes dst = src element by element, rounding to nearest, an f64 to
	// 16 bits by way of f32. The two do not overlap.
	Convert(s device.Stream, dst, src tensor.Tensor)
	// Add writes dst += src; dst is F32, and src F32, BF16 or F16.
	Add(s device.Stream, dst, src tensor.Tensor)
	// Checksum writes arith.Checksum of b, as 8 bytes, to sum.
	Checksum(s device.Stream, sum, b device.Buffer)
	Close() error
}

var (
	_ Memory = (*arith.Arith)(nil)
	_ Memory = Host{}
)

// Of is the memory of the device that both streams are of. user stands in the names of
// what is enqueued.
func Of(user string, compute, comm device.Stream) (Memory, error) {
	if a, b := compute.Device().String(), comm.Device().String(); a != b {
		return nil, fmt.Errorf("the compute stream is of %s, the communication stream of %s: they must be of one device", a, b)
	}
	if dev, ok := compute.Device().(*cuda.Device); ok {
		a, err := arith.New(dev)
		if err != nil {
			return nil, fmt.Errorf("kernels for gradients and weights: %w", err)
		}
		return a, nil
	}
	for _, s := range []device.Stream{compute, comm} {
		if _, ok := s.(HostStream); !ok {
			return nil, fmt.Errorf("a stream of %s that runs neither CUDA kernels nor Go functions (%T)", s.Device(), s)
		}
	}
	return Host{user}, nil
}

// HostStream runs Go functions.
type HostStream interface {
	device.Stream
	Do(name string, f func() error)
}

// Host is memory that Go functions on its streams can touch.
type Host struct{ User string }

func (h Host) do(s device.Stream, what string, f func()) {
	s.(HostStream).Do(h.User+": "+what, func() error { f(); return nil })
}

func (Host) Close() error { return nil }

func (h Host) Clear(s device.Stream, b device.Buffer) {
	h.do(s, "clear", func() { clear(b.Bytes()) })
}

func (h Host) Checksum(s device.Stream, sum, b device.Buffer) {
	h.do(s, "checksum", func() { binary.NativeEndian.PutUint64(sum.Bytes(), arith.Checksum(b.Bytes())) })
}

func (h Host) Add(s device.Stream, dst, src tensor.Tensor) {
	h.do(s, "add", func() { vec.Accumulate(src.DType, dst.F32(), src.Buf.Bytes()) })
}

func (h Host) Convert(s device.Stream, dst, src tensor.Tensor) {
	h.do(s, "convert", func() { convert(dst, src) })
}

func convert(dst, src tensor.Tensor) {
	switch {
	case dst.DType == src.DType:
		copy(dst.Buf.Bytes(), src.Buf.Bytes())
	case dst.DType == dtype.F32 && src.DType != dtype.F64:
		vec.Widen(src.DType, dst.F32(), src.Buf.Bytes())
	case src.DType == dtype.F32 && dst.DType != dtype.F64:
		vec.Narrow(dst.DType, dst.Buf.Bytes(), src.F32())
	default:
		byF32(dst, src)
	}
}

// byF32 converts a piece at a time by way of f32, which holds both 16-bit types
// exactly, and to which an f64 is rounded first.
func byF32(dst, src tensor.Tensor) {
	n := dst.Numel()
	dst, src = dst.Reshape(n), src.Reshape(n)
	var piece [1024]float32
	for at := 0; at < n; at += len(piece) {
		end := min(at+len(piece), n)
		wide, from, to := piece[:end-at], src.Rows(at, end), dst.Rows(at, end)
		if src.DType == dtype.F64 {
			for i, x := range from.F64() {
				wide[i] = float32(x)
			}
		} else {
			vec.Widen(src.DType, wide, from.Buf.Bytes())
		}
		if dst.DType == dtype.F64 {
			for i, x := range wide {
				to.F64()[i] = float64(x)
			}
		} else {
			vec.Narrow(dst.DType, to.Buf.Bytes(), wide)
		}
	}
}
