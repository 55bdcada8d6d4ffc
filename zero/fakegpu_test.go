package zero

import (
	"github.com/gorun-dev/gorun/runtime/arrays"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/device/devicetest"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// fakeMemory does to memory of a devicetest.GPU, on its streams, what host does elsewhere.
type fakeMemory struct{ gpu *devicetest.GPU }

func (m fakeMemory) Convert(s device.Stream, dst, src tensor.Tensor) {
	arrays.Host{User: "zero"}.Convert(s.(devicetest.Stream), m.gpu.See(dst), m.gpu.See(src))
}

func (m fakeMemory) Add(s device.Stream, dst, src tensor.Tensor) {
	arrays.Host{User: "zero"}.Add(s.(devicetest.Stream), m.gpu.See(dst), m.gpu.See(src))
}

func (m fakeMemory) Close() error { return nil }
