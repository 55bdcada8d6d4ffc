package rdma

import (
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
	if n == 0 {
		return b, nil
	}
	r, err := m.register(b)
	if err != nil {
		return nil, fmt.Errorf("rdma: rank %d on %s, %s: %w", m.o.Rank, m.o.Hosts[m.o.Rank], m.port, err)
	}
	at, _ := slices.BinarySearchFunc(m.regions, addressOf(b), func(e registered, a uintptr) int {
		return compare(addressOf(e.memory), a)
	})
	m.regions = slices.Insert(m.regions, at, registered{b, r})
	return b, nil
}

func compare(a, b uintptr) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// covers finds the region that all of b lies in.
func (m *Mesh) covers(b []byte) (verbs.Region, bool) {
	if len(b) < directLeast {
		return verbs.Region{}, false
	}
	at, exact := slices.BinarySearchFunc(m.regions, addressOf(b), func(e registered, a uintptr) int {
		return compare(addressOf(e.memory), a)
	})
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

// forget ends the device's access to what Alloc has returned.
func (m *Mesh) forget() error {
	var errs []error
	for _, r := range m.regions {
		errs = append(errs, m.api.Deregister(r.Region))
	}
	m.regions = nil
	return errors.Join(errs...)
}
