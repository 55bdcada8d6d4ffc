package ddp

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// hostStream is a stream whose memory the host can touch: work on it is a Go
// function.
type hostStream interface {
	device.Stream
	Do(name string, f func() error)
}

func onHost(s device.Stream) (hostStream, error) {
	h, ok := s.(hostStream)
	if !ok {
		return nil, fmt.Errorf("ddp: a stream of %s runs no Go functions: gradients must be in host memory", s.Device())
	}
	return h, nil
}

// zero clears b on the compute stream.
func (d *DDP) zero(b device.Buffer) {
	d.compute.Do("ddp: clear gradients", func() error {
		clear(b.Bytes())
		return nil
	})
}

// convert writes dst = src element by element, rounding to nearest, on the
// communication stream. It enqueues nothing where both are the same memory.
func (d *DDP) convert(dst, src tensor.Tensor) {
	if dst.DType == src.DType {
		return
	}
	d.comm.Do("ddp: convert gradients", func() error {
		load, store := loader(src), storer(dst)
		for i := range dst.Numel() {
			store(i, load(i))
		}
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
