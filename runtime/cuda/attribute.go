package cuda

import (
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
)

// Attribute is a CUdevice_attribute.
type Attribute int32

// Attributes that the project asks for.
const (
	Multiprocessors     Attribute = 16
	ComputeMajor        Attribute = 75
	ComputeMinor        Attribute = 76
	SharedPerMulti      Attribute = 81  // shared memory of a multiprocessor, bytes
	SharedPerBlockOptIn Attribute = 97  // limit of Function.SetShared, bytes
	DMABuf              Attribute = 124 // HandleForAddressRange works
)

// Attribute returns the GPU's value of a.
func (d *Device) Attribute(a Attribute) (int, error) {
	var v int32
	if r := driver.Result(d.api.DeviceGetAttribute.Call(uintptr(unsafe.Pointer(&v)), uintptr(a), d.id)); r != 0 {
		return 0, d.fail(r, "cuDeviceGetAttribute(%d)", a)
	}
	return int(v), nil
}
