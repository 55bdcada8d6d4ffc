package cuda

import (
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
)

// P2PAttribute is a property of the way from one GPU to another.
type P2PAttribute int32

const (
	P2PRank    P2PAttribute = 1 // 0 is the fastest of the machine
	P2PAccess  P2PAttribute = 2 // 1 where memory can be accessed
	P2PAtomics P2PAttribute = 3 // 1 where atomic operations work across, as over NVLink
)

// CanAccessPeer reports whether kernels and copies of d can reach p's memory.
func (d *Device) CanAccessPeer(p *Device) (bool, error) {
	var can int32
	if r := driver.Result(d.api.DeviceCanAccessPeer.Call(uintptr(unsafe.Pointer(&can)), d.id, p.id)); r != 0 {
		return false, d.fail(r, "cuDeviceCanAccessPeer(%s)", p)
	}
	return can != 0, nil
}

// P2P returns a property of the way from d to p.
func (d *Device) P2P(p *Device, a P2PAttribute) (int, error) {
	var v int32
	if r := driver.Result(d.api.DeviceGetP2PAttribute.Call(uintptr(unsafe.Pointer(&v)), uintptr(a), d.id, p.id)); r != 0 {
		return 0, d.fail(r, "cuDeviceGetP2PAttribute(%d, %s)", a, p)
	}
	return int(v), nil
}

// EnablePeerAccess lets d's kernels and copies reach what is allocated on p, now
// and later. It is one way; enabling it twice is no error.
func (d *Device) EnablePeerAccess(p *Device) error {
	if r := d.call(d.api.CtxEnablePeerAccess, p.Context(), 0); r != 0 && r != driver.PeerAccessAlreadyEnabled {
		return d.fail(r, "cuCtxEnablePeerAccess(%s)", p)
	}
	return nil
}
