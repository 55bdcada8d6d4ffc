package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// sharedMemory looks at /dev/shm, through which NCCL and PyTorch's loaders pass data
// between processes of a host; a write beyond its room kills with SIGBUS. gorun's own
// shared memory does not lie there.
type sharedMemory struct{}

func (sharedMemory) name() string { return "shm" }

// shmPerWorker is what NCCL takes for a worker with two neighbours on its host: about
// 32 MiB for each.
const shmPerWorker = 64 << 20

func (sharedMemory) look(_ context.Context, m *Machine) ([]Finding, error) {
	const fix = "mount -o remount,size=8G /dev/shm; for a container --shm-size=8g or --ipc=host, in Kubernetes an emptyDir of medium Memory at /dev/shm"
	s, err := m.Space("/dev/shm")
	if errors.Is(err, fs.ErrNotExist) {
		return []Finding{{
			Severity: Warning, What: "there is no /dev/shm: NCCL's transport within a host and PyTorch's loaders fail",
			Evidence: err.Error(), Fix: fix,
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	need := uint64(shmPerWorker * m.Workers)
	if m.Workers < 2 || s.Free >= need {
		return nil, nil
	}
	return []Finding{{
		Severity: Warning,
		What:     fmt.Sprintf("/dev/shm has %s free, and %d workers with NCCL or PyTorch may take %s: they die of SIGBUS, or fail to start; gorun's own transport does not use it", bytesText(s.Free), m.Workers, bytesText(need)),
		Evidence: fmt.Sprintf("/dev/shm: %s in all, %s free", bytesText(s.Total), bytesText(s.Free)),
		Fix:      fix,
	}}, nil
}
