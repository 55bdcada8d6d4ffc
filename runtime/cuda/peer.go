package cuda

import "github.com/gorun-dev/gorun/runtime/cuda/internal/driver"

// EnablePeerAccess lets d's kernels and copies reach what is allocated on p, now
// and later. It is one way; enabling it twice is no error. Where the GPUs cannot
// reach one another it fails.
func (d *Device) EnablePeerAccess(p *Device) error {
	if r := d.call(d.api.CtxEnablePeerAccess, p.Context(), 0); r != 0 && r != driver.PeerAccessAlreadyEnabled {
		return d.fail(r, "cuCtxEnablePeerAccess(%s)", p)
	}
	return nil
}
