package cuda

import (
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
)

// Attribute is a CUdevice_attribute.
type Attribute int32

// Attributes that the project asks for.
const (
	MaxThreadsPerBlock  Attribute = 1
	WarpSize            Attribute = 10
	Multiprocessors     Attribute = 16
	AsyncEngines        Attribute = 40 // copy engines
	L2CacheBytes        Attribute = 38
	ThreadsPerMulti     Attribute = 39 // resident threads of a multiprocessor
	ComputeMajor        Attribute = 75
	ComputeMinor        Attribute = 76
	SharedPerMulti      Attribute = 81 // shared memory of a multiprocessor, bytes
	RegistersPerMulti   Attribute = 82
	CooperativeLaunch   Attribute = 95
	SharedPerBlockOptIn Attribute = 97 // limit of Function.SetShared, bytes
	VirtualMemory       Attribute = 102
	MemoryPools         Attribute = 115
	GPUDirectRDMA       Attribute = 116
	WaitValueNor        Attribute = 123
	DMABuf              Attribute = 124 // HandleForAddressRange works
	IPCEvents           Attribute = 125
	TensorMaps          Attribute = 127 // EncodeTiled works
	FabricHandles       Attribute = 128
	Multicast           Attribute = 132
	HostNUMANode        Attribute = 134 // the host's node nearest to the GPU, -1 where unknown
)

// Attribute returns the GPU's value of a.
func (d *Device) Attribute(a Attribute) (int, error) {
	var v int32
	if r := driver.Result(d.api.DeviceGetAttribute.Call(uintptr(unsafe.Pointer(&v)), uintptr(a), d.id)); r != 0 {
		return 0, d.fail(r, "cuDeviceGetAttribute(%d)", a)
	}
	return int(v), nil
}
