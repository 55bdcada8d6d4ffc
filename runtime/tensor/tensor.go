// Package tensor pairs a buffer with an element type and a shape.
package tensor

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Tensor is a dense row-major array on one device. It is a value: copies share
// the memory, and the memory's owner decides how long it lives. The zero Tensor
// means "none" where an argument is optional.
type Tensor struct {
	Buf   device.Buffer
	DType dtype.DType
	Shape []int
}

// New describes buf as elements of dt in the given shape; it panics when the
// sizes differ, which is a fault of the program.
func New(buf device.Buffer, dt dtype.DType, shape ...int) Tensor {
	t := Tensor{buf, dt, shape}
	if want := t.Numel() * dt.Size(); buf.Len() != want {
		panic(fmt.Sprintf("tensor: %s%v takes %d bytes, the buffer has %d", dt, shape, want, buf.Len()))
	}
	return t
}

// Numel is the product of the dimensions, 1 for a scalar.
func (t Tensor) Numel() int { return Numel(t.Shape) }

// None reports whether t is the zero Tensor.
func (t Tensor) None() bool { return t.DType == dtype.Invalid }

// Reshape sees the same memory in another shape of the same size.
func (t Tensor) Reshape(shape ...int) Tensor { return New(t.Buf, t.DType, shape...) }

// Rows is rows [from, to) of the first dimension.
func (t Tensor) Rows(from, to int) Tensor {
	row := t.DType.Size()
	for _, d := range t.Shape[1:] {
		row *= d
	}
	shape := append([]int{to - from}, t.Shape[1:]...)
	return New(t.Buf.Slice(from*row, to*row), t.DType, shape...)
}

// F32 is the elements of a host tensor of type F32.
func (t Tensor) F32() []float32 { t.want(dtype.F32); return device.View[float32](t.Buf) }

// F64 is the elements of a host tensor of type F64.
func (t Tensor) F64() []float64 { t.want(dtype.F64); return device.View[float64](t.Buf) }

// I32 is the elements of a host tensor of type I32.
func (t Tensor) I32() []int32 { t.want(dtype.I32); return device.View[int32](t.Buf) }

func (t Tensor) want(dt dtype.DType) {
	if t.DType != dt {
		panic(fmt.Sprintf("tensor: %s%v is not %s", t.DType, t.Shape, dt))
	}
}

func (t Tensor) String() string {
	if t.None() {
		return "none"
	}
	return fmt.Sprintf("%s%v", t.DType, t.Shape)
}

// Numel is the product of the dimensions of shape.
func Numel(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// packAlign is where tensors of a Pack begin: what vectorised loads and matrix
// products ask for on any device.
const packAlign = 256

// PackedBytes is the memory that Pack takes for shapes of dt.
func PackedBytes(dt dtype.DType, shapes [][]int) int64 {
	var n int64
	for _, s := range shapes {
		n += int64(Numel(s)*dt.Size()+packAlign-1) / packAlign * packAlign
	}
	return n
}

// Pack makes zeroed tensors of dt in one piece of d's memory, which the first one's
// buffer begins. Each starts at a multiple of 256 bytes.
func Pack(d device.Allocator, dt dtype.DType, shapes [][]int) ([]Tensor, error) {
	total := PackedBytes(dt, shapes)
	buf, err := d.Alloc(int(total))
	if err != nil {
		return nil, err
	}
	list := make([]Tensor, len(shapes))
	at := 0
	for i, s := range shapes {
		n := Numel(s) * dt.Size()
		list[i] = New(buf.Slice(at, at+n), dt, s...)
		at += (n + packAlign - 1) / packAlign * packAlign
	}
	return list, nil
}

// Alloc makes a zeroed tensor on d.
func Alloc(d device.Device, dt dtype.DType, shape ...int) (Tensor, error) {
	buf, err := d.Alloc(Numel(shape) * dt.Size())
	if err != nil {
		return Tensor{}, fmt.Errorf("%s%v: %w", dt, shape, err)
	}
	return New(buf, dt, shape...), nil
}
