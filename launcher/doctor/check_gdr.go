package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gorun-dev/gorun/runtime/topology"
)

// gdr says whether a network card may read and write GPU memory by itself (GPUDirect
// RDMA), by which of the two ways, and else why not.
type gdr struct{}

func (gdr) name() string { return "gdr" }

// What dma-buf, the newer way, asks for.
const (
	dmabufKernelMajor, dmabufKernelMinor = 5, 12
	dmabufDriver                         = 515
)

func (c gdr) look(_ context.Context, m *Machine) ([]Finding, error) {
	s, err := m.system()
	if err != nil {
		return nil, err
	}
	there, err := m.hasRDMA()
	switch {
	case err != nil:
		return nil, err
	case len(s.GPUs) == 0:
		return nil, errors.New("no NVIDIA GPU")
	case !there:
		return nil, errors.New("no RDMA device")
	case !m.exists("proc/driver/nvidia/version"):
		return nil, errors.New("NVIDIA's driver is not loaded (/proc/driver/nvidia/version)")
	}
	f, err := c.registration(m, s)
	if err != nil {
		return nil, err
	}
	return append([]Finding{f}, c.far(s)...), nil
}

// registration says by which way the kernel lets a card use GPU memory.
func (c gdr) registration(m *Machine, s *topology.System) (Finding, error) {
	if s.PeerMemory != "" {
		return Finding{
			Severity: Note, What: "GPUDirect RDMA is there, through the module " + s.PeerMemory + ": cards read and write GPU memory",
			Evidence: s.PeerMemory + " is loaded",
		}, nil
	}
	why, err := c.whyNoDMABuf(m)
	if err != nil {
		return Finding{}, err
	}
	if len(why) == 0 {
		return Finding{
			Severity: Note, What: "GPUDirect RDMA is there, through dma-buf: the driver exports GPU memory, and cards whose driver imports it (mlx5 does) read and write it",
			Evidence: "the driver's open kernel modules, on a kernel that passes memory between devices; nvidia_peermem is not loaded",
		}, nil
	}
	return Finding{
		Severity: Warning,
		What:     "GPUDirect RDMA is off: what GPUs send between hosts is copied through host memory first",
		Evidence: "nvidia_peermem is not loaded; no dma-buf: " + strings.Join(why, "; "),
		Fix:      "modprobe nvidia_peermem (it comes with the driver, and needs the RDMA stack when it is built), or use the driver's open kernel modules on Linux 5.12 or later",
	}, nil
}

// far reports GPUs that have no card near enough, once for all of them.
func (gdr) far(s *topology.System) []Finding {
	var reasons, gpus []string
	for _, g := range s.GPUs {
		near := s.NearestNICs(g)
		if len(near) == 0 {
			reasons = append(reasons, fmt.Sprintf("GPU%d: no network card with an active port", g.Index))
			gpus = append(gpus, fmt.Sprintf("GPU%d", g.Index))
			continue
		}
		if ok, why := s.GPUDirect(g, near[0]); !ok {
			reasons = append(reasons, fmt.Sprintf("GPU%d and %s: %s", g.Index, near[0].Name, why))
			gpus = append(gpus, fmt.Sprintf("GPU%d", g.Index))
		}
	}
	if len(gpus) == 0 {
		return nil
	}
	return []Finding{{
		Severity: Warning, Where: Where{Device: strings.Join(gpus, ", ")},
		What:     fmt.Sprintf("%s of %d have no network card that they could use by GPUDirect RDMA", plural(len(gpus), "GPU"), len(s.GPUs)),
		Evidence: strings.Join(reasons, "; "),
		Fix:      "put a card below the same PCIe switch as each GPU, or bring its port up; NCCL_NET_GDR_LEVEL=SYS allows longer paths, which are slow on most machines",
	}}
}

// whyNoDMABuf lists what keeps GPU memory from being exported as a dma-buf.
func (gdr) whyNoDMABuf(m *Machine) (why []string, err error) {
	release, err := m.text("proc/sys/kernel/osrelease")
	if err != nil {
		return nil, err
	}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return nil, fmt.Errorf("/proc/sys/kernel/osrelease: %q: %w", release, err)
	}
	if major < dmabufKernelMajor || major == dmabufKernelMajor && minor < dmabufKernelMinor {
		why = append(why, fmt.Sprintf("Linux %s, want %d.%d or later", release, dmabufKernelMajor, dmabufKernelMinor))
	}
	text, err := m.text("proc/driver/nvidia/version")
	if err != nil {
		return nil, err
	}
	if !strings.Contains(text, "Open Kernel Module") {
		why = append(why, "the driver's kernel modules are the proprietary ones")
	}
	version, err := m.nvidiaDriver()
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(first); err != nil || n < dmabufDriver {
		why = append(why, fmt.Sprintf("driver %s, want %d or later", version, dmabufDriver))
	}
	return why, nil
}
