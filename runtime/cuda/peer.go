package cuda

import (
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
)

// NVLinked reports whether NVLink joins d to the GPU of that UUID: the two do atomic
// operations in each other's memory, which PCIe does not carry. It is false for a GPU that
// this process does not see.
func (d *Device) NVLinked(uuid string) (bool, error) {
	n, err := Count()
	if err != nil {
		return false, err
	}
	for i := range n {
		peer := newDevice(d.api, i)
		if err := peer.describe(); err != nil {
			return false, err
		}
		if peer.uuid != uuid {
			continue
		}
		const nativeAtomics = 3
		var linked int32
		if r := driver.Result(d.api.DeviceGetP2PAttribute.Call(uintptr(unsafe.Pointer(&linked)), nativeAtomics, d.id, peer.id)); r != 0 {
			return false, d.fail(r, "cuDeviceGetP2PAttribute(native atomics, %s)", peer)
		}
		return linked != 0, nil
	}
	return false, nil
}

// EnablePeerAccess lets d's kernels and copies reach what is allocated on p, now
// and later. It is one way; enabling it twice is no error. Where the GPUs cannot
// reach one another it fails.
func (d *Device) EnablePeerAccess(p *Device) error {
	if r := d.call(d.api.CtxEnablePeerAccess, p.Context(), 0); r != 0 && r != driver.PeerAccessAlreadyEnabled {
		return d.fail(r, "cuCtxEnablePeerAccess(%s)", p)
	}
	return nil
}
