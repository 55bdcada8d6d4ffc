package zero

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/arith"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// memory is what a Zero does to gradients and weights where they lie. All but
// Close enqueue on s, which is a stream of the memory's device, and return at once.
type memory interface {
	// Convert writes dst = src element by element, rounding to nearest. The two do
	// not overlap.
	Convert(s device.Stream, dst, src tensor.Tensor)
	// Add writes dst += src; the sum is made in f32.
	Add(s device.Stream, dst, src tensor.Tensor)
	Close() error
}

var _ memory = (*arith.Arith)(nil)

// memoryOf is the memory of the device that both streams are of.
func memoryOf(compute, comm device.Stream) (memory, error) {
	if a, b := compute.Device().String(), comm.Device().String(); a != b {
		return nil, fmt.Errorf("zero: the compute stream is of %s, the communication stream of %s: they must be of one device", a, b)
	}
	if dev, ok := compute.Device().(*cuda.Device); ok {
		a, err := arith.New(dev)
		if err != nil {
			return nil, fmt.Errorf("zero: kernels for gradients and weights: %w", err)
		}
		return a, nil
	}
	for _, s := range []device.Stream{compute, comm} {
		if _, ok := s.(hostStream); !ok {
			return nil, fmt.Errorf("zero: a stream of %s that runs neither CUDA kernels nor Go functions (%T)", s.Device(), s)
		}
	}
	return host{}, nil
}

// host is memory that Go functions on its streams can touch.
type host struct{}

type hostStream interface {
	device.Stream
	Do(name string, f func() error)
}

func (host) Close() error { return nil }

// Convert goes by way of f32, which holds each of the types, a piece at a time
// where neither side is f32.
func (host) Convert(s device.Stream, dst, src tensor.Tensor) {
	s.(hostStream).Do("zero: convert", func() error {
		switch {
		case dst.DType == src.DType:
			copy(dst.Buf.Bytes(), src.Buf.Bytes())
		case dst.DType == dtype.F32:
			vec.Widen(src.DType, dst.F32(), src.Buf.Bytes())
		case src.DType == dtype.F32:
			vec.Narrow(dst.DType, dst.Buf.Bytes(), src.F32())
		default:
			var piece [1024]float32
			for at, n := 0, dst.Numel(); at < n; at += len(piece) {
				end := min(at+len(piece), n)
				wide := piece[:end-at]
				vec.Widen(src.DType, wide, src.Rows(at, end).Buf.Bytes())
				vec.Narrow(dst.DType, dst.Rows(at, end).Buf.Bytes(), wide)
			}
		}
		return nil
	})
}

// Add adds to f32.
func (host) Add(s device.Stream, dst, src tensor.Tensor) {
	s.(hostStream).Do("zero: add gradients", func() error {
		vec.Accumulate(src.DType, dst.F32(), src.Buf.Bytes())
		return nil
	})
}
