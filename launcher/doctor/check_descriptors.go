package doctor

import (
	"context"
	"fmt"
)

// descriptors looks at how many files and sockets a worker may have open. What counts
// is the hard limit: a Go program raises its own to it.
type descriptors struct{}

func (descriptors) name() string { return "descriptors" }

const (
	descriptorsOwn  = 256 // libraries, logs, data, pipes
	descriptorsPeer = 8   // connections to one other rank, and NCCL's
)

func (descriptors) look(_ context.Context, m *Machine) ([]Finding, error) {
	_, hard, err := m.limit("Max open files")
	if err != nil {
		return nil, err
	}
	need := uint64(descriptorsOwn + descriptorsPeer*m.World)
	if hard >= need {
		return nil, nil
	}
	return []Finding{{
		Severity: Warning,
		What:     fmt.Sprintf("a worker may open %d files and sockets, and may need %d with %d ranks", hard, need, m.World),
		Evidence: fmt.Sprintf("/proc/self/limits: Max open files, hard limit %d", hard),
		Fix:      fmt.Sprintf("raise the hard limit to %d or more: nofile in /etc/security/limits.conf, LimitNOFILE= of the service, or --ulimit nofile=1048576 of the container", need),
	}}, nil
}
