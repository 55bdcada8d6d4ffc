package rdma

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
	"github.com/gorun-dev/gorun/runtime/device"
)

// GPU is what making its memory known to a network card needs of a GPU.
// *cuda.Device is one.
type GPU interface {
	// HandleForAddressRange returns a descriptor of a DMA buffer over b, whole pages.
	HandleForAddressRange(b device.Buffer) (fd int, err error)
}

// GPUPath is how a network card reaches memory of a GPU.
type GPUPath string

const (
	PeerMemory GPUPath = "nvidia-peermem" // a module of NVIDIA's translates its addresses
	DMABuf     GPUPath = "dma-buf"        // the driver exports it
	Staging    GPUPath = "staging"        // not at all: data goes through memory of the host
)

// GPUMemory is memory of a GPU as the device knows it.
type GPUMemory struct {
	Path GPUPath
	// Why is the reason for Staging, else empty.
	Why string
	verbs.Region
	buffer device.Buffer
}

// peerModules are the files by which the kernel shows that a module translates
// addresses of GPUs, below /sys.
var peerModules = []string{"module/nvidia_peermem/version", "kernel/mm/memory_peers/nv_mem/version", "kernel/mm/memory_peers/nv_mem_nc/version"}

// RegisterGPU makes memory b of GPU g known to the device, until Close, by the way that
// this host has. b stays allocated until then. Where there is none the path is Staging,
// with the reason for each way: that is no error. The log says which it is.
func (m *Mesh) RegisterGPU(g GPU, b device.Buffer) (GPUMemory, error) {
	m.use.Lock()
	defer m.use.Unlock()
	if err := m.cause(); err != nil {
		return GPUMemory{}, err
	}
	if b.OnHost() || b.Len() == 0 {
		return GPUMemory{}, fmt.Errorf("rdma: %d bytes to register as GPU memory, which they are not", b.Len())
	}
	got := GPUMemory{Path: PeerMemory, buffer: b}
	var byModule, byBuffer error
	if got.Region, byModule = m.throughModule(b); byModule != nil {
		got.Path = DMABuf
		if got.Region, byBuffer = m.throughBuffer(g, b); byBuffer != nil {
			got.Path, got.Why = Staging, fmt.Sprintf("%s: %v; %s: %v", PeerMemory, byModule, DMABuf, byBuffer)
		}
	}
	if got.Path != Staging {
		m.gpu = append(m.gpu, got.Region)
	}
	m.o.Logger.Info("rdma: memory of the GPU", "rank", m.o.Rank, "port", m.port.String(), "path", string(got.Path), "why", got.Why)
	return got, nil
}

// deviceAccess has reads for FlushGPU.
const deviceAccess = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead

func (m *Mesh) throughModule(b device.Buffer) (verbs.Region, error) {
	sys := m.o.Sys
	if sys == "" {
		sys = "/sys"
	}
	for _, file := range peerModules {
		if _, err := os.Stat(filepath.Join(sys, file)); err == nil {
			return m.api.Register(m.pd, b.Addr(), b.Len(), deviceAccess)
		}
	}
	return verbs.Region{}, errors.New("the module is not loaded (modprobe nvidia-peermem)")
}

// throughBuffer exports the pages that b lies on. The registration keeps the buffer,
// so that its descriptor is closed at once.
func (m *Mesh) throughBuffer(g GPU, b device.Buffer) (verbs.Region, error) {
	page := uintptr(os.Getpagesize())
	offset := b.Addr() % page
	pages := (offset + uintptr(b.Len()) + page - 1) / page * page
	fd, err := g.HandleForAddressRange(device.At(b.Addr()-offset, int(pages)))
	if err != nil {
		return verbs.Region{}, err
	}
	r, err := m.api.RegisterDMABuf(m.pd, fd, uint64(offset), b.Len(), uint64(b.Addr()), deviceAccess)
	switch {
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EPROTONOSUPPORT):
		err = fmt.Errorf("the driver of %s takes no DMA buffers: %w", m.port.Device, err)
	}
	return r, errors.Join(err, os.NewSyscallError("close", syscall.Close(fd)))
}
