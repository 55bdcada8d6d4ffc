package ddp

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

// memory is what a DDP does to gradients and weights where they lie. All but Close
// enqueue on s, which is a stream of the memory's device, and return at once.
type memory interface {
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

var _ memory = (*arith.Arith)(nil)

// memoryOf is the memory of the device that both streams are of.
func memoryOf(compute, comm device.Stream) (memory, error) {
	if a, b := compute.Device().String(), comm.Device().String(); a != b {
		return nil, fmt.Errorf("ddp: the compute stream is of %s, the communication stream of %s: they must be of one device", a, b)
	}
	if dev, ok := compute.Device().(*cuda.Device); ok {
		a, err := arith.New(dev)
		if err != nil {
			return nil, fmt.Errorf("ddp: kernels for gradients: %w", err)
		}
		return a, nil
	}
	for _, s := range []device.Stream{compute, comm} {
		if _, ok := s.(hostStream); !ok {
			return nil, fmt.Errorf("ddp: a stream of %s that runs neither CUDA kernels nor Go functions (%T)", s.Device(), s)
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

func (host) Clear(s device.Stream, b device.Buffer) {
	s.(hostStream).Do("ddp: clear gradients", func() error {
		clear(b.Bytes())
		return nil
	})
}

func (host) Checksum(s device.Stream, sum, b device.Buffer) {
	s.(hostStream).Do("ddp: checksum weights", func() error {
		binary.NativeEndian.PutUint64(sum.Bytes(), arith.Checksum(b.Bytes()))
		return nil
	})
}

func (host) Convert(s device.Stream, dst, src tensor.Tensor) {
	s.(hostStream).Do("ddp: convert gradients", func() error {
		switch {
		case dst.DType == dtype.F32 && src.DType != dtype.F64:
			vec.Widen(src.DType, dst.F32(), src.Buf.Bytes())
		case src.DType == dtype.F32 && dst.DType != dtype.F64:
			vec.Narrow(dst.DType, dst.Buf.Bytes(), src.F32())
		default:
			load, store := loader(src), storer(dst)
			for i := range dst.Numel() {
				store(i, load(i))
			}
		}
		return nil
	})
}

func (host) Add(s device.Stream, dst, src tensor.Tensor) {
	s.(hostStream).Do("ddp: add gradients", func() error {
		vec.Accumulate(src.DType, dst.F32(), src.Buf.Bytes())
		return nil
	})
}

func loader(t tensor.Tensor) func(i int) float64 {
	switch t.DType {
	case dtype.F32:
		v := t.F32()
		return func(i int) float64 { return float64(v[i]) }
	case dtype.F64:
		v := t.F64()
		return func(i int) float64 { return v[i] }
	}
	v, to := device.View[uint16](t.Buf), dtype.F16To
	if t.DType == dtype.BF16 {
		to = dtype.BF16To
	}
	return func(i int) float64 { return float64(to(v[i])) }
}

// storer rounds f64 to 16 bits by way of f32, as other types arrive exactly.
func storer(t tensor.Tensor) func(i int, x float64) {
	switch t.DType {
	case dtype.F32:
		v := t.F32()
		return func(i int, x float64) { v[i] = float32(x) }
	case dtype.F64:
		v := t.F64()
		return func(i int, x float64) { v[i] = x }
	}
	v, from := device.View[uint16](t.Buf), dtype.F16From
	if t.DType == dtype.BF16 {
		from = dtype.BF16From
	}
	return func(i int, x float64) { v[i] = from(float32(x)) }
}
