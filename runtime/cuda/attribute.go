package cuda

import (
	"fmt"
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

	PCIBus    Attribute = 33 // with PCISlot and PCIDomain the GPU's address
	PCISlot   Attribute = 34
	PCIDomain Attribute = 50

	// FlushOptions has bit 0 where FlushWrites works, and WritesOrdering is to whom what
	// network cards write is visible without it: 0 nobody, OrderedToOwner or more the GPU.
	FlushOptions   Attribute = 117
	WritesOrdering Attribute = 118
)

// OrderedToOwner is a value of WritesOrdering.
const OrderedToOwner = 100

const (
	flushCurrent = 0   // the GPU of the current context
	flushToOwner = 100 // to that GPU
)

// Attribute returns the GPU's value of a.
func (d *Device) Attribute(a Attribute) (int, error) {
	var v int32
	if r := driver.Result(d.api.DeviceGetAttribute.Call(uintptr(unsafe.Pointer(&v)), uintptr(a), d.id)); r != 0 {
		return 0, d.fail(r, "cuDeviceGetAttribute(%d)", a)
	}
	return int(v), nil
}

// BusID is the GPU's PCI address, as 0000:17:00.0.
func (d *Device) BusID() (string, error) {
	var at [3]int
	for i, a := range []Attribute{PCIDomain, PCIBus, PCISlot} {
		var err error
		if at[i], err = d.Attribute(a); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%04x:%02x:%02x.0", at[0], at[1], at[2]), nil
}

// FlushWrites makes visible to the GPU what network cards have written to its memory, as
// far as their completions have been seen. FlushOptions says whether it can.
func (d *Device) FlushWrites() error {
	if r := d.call(d.api.FlushGPUDirectRDMAWrites, flushCurrent, flushToOwner); r != 0 {
		return d.fail(r, "cuFlushGPUDirectRDMAWrites")
	}
	return nil
}
