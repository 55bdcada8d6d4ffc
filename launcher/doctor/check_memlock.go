package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// lockedMemory looks at how much memory may be locked: RDMA registers what it sends.
type lockedMemory struct{}

func (lockedMemory) name() string { return "memlock" }

// capIPCLock is the number of the capability that lifts the limit.
const capIPCLock = 14

// lockedPerWorker is what a worker registers at least: its arena and its buffers.
const lockedPerWorker = 1 << 30

func (lockedMemory) look(_ context.Context, m *Machine) ([]Finding, error) {
	there, err := m.hasRDMA()
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, errors.New("no RDMA device, which alone needs locked memory")
	}
	soft, hard, err := m.limit("Max locked memory")
	if err != nil {
		return nil, err
	}
	caps, err := m.status("CapEff")
	if err != nil {
		return nil, err
	}
	set, err := strconv.ParseUint(caps, 16, 64)
	if err != nil {
		return nil, fmt.Errorf("/proc/self/status: CapEff %q: %w", caps, err)
	}
	need := uint64(lockedPerWorker * m.Workers)
	if soft >= need || set>>capIPCLock&1 != 0 {
		return nil, nil
	}
	return []Finding{{
		Severity: Error,
		What:     fmt.Sprintf("%s of memory may be locked, and RDMA registers what it sends, gradients among it: registrations fail with ENOMEM", bytesText(soft)),
		Evidence: fmt.Sprintf("/proc/self/limits: Max locked memory %s, hard limit %s; CAP_IPC_LOCK is not held", bytesText(soft), bytesText(hard)),
		Fix:      "memlock unlimited in /etc/security/limits.conf, LimitMEMLOCK=infinity of the service, --ulimit memlock=-1 of the container; then log in again",
	}}, nil
}
