package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
)

// registered is memory that the device may read and write, so that messages from and
// to it move without a copy.
type registered struct {
	memory []byte // held, so that its addresses stay what they are
	verbs.Region
}

// register makes memory known to the device.
func (m *Mesh) register(b []byte) (verbs.Region, error) {
	r, err := m.api.Register(m.pd, addressOf(b), len(b), verbs.LocalWrite|verbs.RemoteWrite)
	if errors.Is(err, syscall.ENOMEM) {
		err = fmt.Errorf("%w: %s", err, memlock())
	}
	if err != nil {
		return r, fmt.Errorf("registering %d bytes: %w", len(b), err)
	}
	return r, nil
}

// memlock says what limits the memory that may be registered.
func memlock() string {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil || l.Cur == unix.RLIM_INFINITY {
		return "the host or the device is out of memory"
	}
	return fmt.Sprintf("the limit on locked memory is %d bytes: raise it (ulimit -l unlimited, or LimitMEMLOCK=infinity for a service, or --ulimit memlock=-1 for a container)", l.Cur)
}

// Alloc returns n bytes, zeroed, that move without a copy, until Close. The slice
// itself stays good for as long as it is referred to.
//
// Only such memory is registered: any other may be unmapped, and its addresses given
// to other memory, without a word to the device, which would go on with the old pages.
func (m *Mesh) Alloc(n int) ([]byte, error) {
	m.use.Lock()
	defer m.use.Unlock()
	if err := m.cause(); err != nil {
		return nil, err
	}
	b := make([]byte, n)
	return b, m.adopt(b)
}

// adopt registers b and puts it in its place among the regions.
func (m *Mesh) adopt(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	r, err := m.register(b)
	if err != nil {
		return fmt.Errorf("rdma: rank %d on %s, %s: %w", m.o.Rank, m.o.Hosts[m.o.Rank], m.port, err)
	}
	at, _ := m.find(addressOf(b))
	m.regions = slices.Insert(m.regions, at, registered{b, r})
	return nil
}

// find is the place of an address among the regions, by their first.
func (m *Mesh) find(a uintptr) (at int, exact bool) {
	return slices.BinarySearchFunc(m.regions, a, func(r registered, a uintptr) int { return cmp.Compare(addressOf(r.memory), a) })
}

// covers finds the region that all of b lies in.
func (m *Mesh) covers(b []byte) (verbs.Region, bool) {
	if len(b) == 0 {
		return verbs.Region{}, false
	}
	at, exact := m.find(addressOf(b))
	if !exact {
		at--
	}
	if at < 0 {
		return verbs.Region{}, false
	}
	r := &m.regions[at]
	if addressOf(b)+uintptr(len(b)) > addressOf(r.memory)+uintptr(len(r.memory)) {
		return verbs.Region{}, false
	}
	return r.Region, true
}

// forget ends the device's access to the memory of this rank's buffers.
func (m *Mesh) forget() error {
	var errs []error
	for _, r := range m.regions {
		errs = append(errs, m.api.Deregister(r.Region))
	}
	for _, r := range m.gpu {
		errs = append(errs, m.api.Deregister(r))
	}
	m.regions, m.gpu = nil, nil
	return errors.Join(errs...)
}

// Adopt makes memory from elsewhere move without a copy. It has to stay mapped until
// Close.
func (m *Mesh) Adopt(b []byte) error {
	m.use.Lock()
	defer m.use.Unlock()
	if err := m.cause(); err != nil {
		return err
	}
	return m.adopt(b)
}
