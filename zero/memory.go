package zero

import (
	"github.com/gorun-dev/gorun/runtime/arrays"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
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

var _ memory = arrays.Memory(nil)

type hostStream = arrays.HostStream
