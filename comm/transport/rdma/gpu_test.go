package rdma

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
	"github.com/gorun-dev/gorun/runtime/device"
)

// fakeGPU exports its memory, unless it can't.
type fakeGPU struct {
	err   error
	asked device.Buffer
	fd    int
}

func (g *fakeGPU) HandleForAddressRange(b device.Buffer) (int, error) {
	if g.asked = b; g.err != nil {
		return -1, g.err
	}
	var fds [2]int
	if err := syscall.Pipe(fds[:]); err != nil {
		return -1, err
	}
	syscall.Close(fds[1])
	g.fd = fds[0]
	return g.fd, nil
}

// Which way is taken to a GPU's memory, and what is said where there is none.
func TestMemoryOfAGPU(t *testing.T) {
	const addr, size = 0x7f0000000123, 5000
	page := os.Getpagesize()
	for name, c := range map[string]struct {
		module        string
		export, takes error // of the GPU's driver, of the card's
		want          GPUPath
		why           []string
	}{
		"peermem":              {module: peerModules[0], want: PeerMemory},
		"an older module":      {module: peerModules[1], export: errors.New("no"), want: PeerMemory},
		"dma-buf":              {want: DMABuf},
		"a card without":       {takes: syscall.EOPNOTSUPP, want: Staging, why: []string{"modprobe nvidia-peermem", "fake0 takes no DMA buffers"}},
		"a driver without":     {export: errors.New("not exported"), want: Staging, why: []string{"not loaded", "not exported"}},
		"a registration fails": {takes: syscall.ENOMEM, want: Staging, why: []string{"cannot allocate memory"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			api := f.API()
			g := &fakeGPU{err: c.export}
			var module, buffer int
			register := api.Register
			api.Register = func(pd verbs.PD, at uintptr, n int, access verbs.Access) (verbs.Region, error) {
				if at == addr && n == size {
					module++
				}
				return register(pd, at, n, access)
			}
			api.RegisterDMABuf = func(pd verbs.PD, fd int, offset uint64, n int, iova uint64, access verbs.Access) (verbs.Region, error) {
				if buffer++; fd != g.fd || offset != addr%uint64(page) || n != size || iova != addr || access != deviceAccess {
					t.Errorf("fd %d offset %d, %d bytes at %#x, access %d", fd, offset, n, iova, access)
				}
				if c.takes != nil {
					return verbs.Region{}, os.NewSyscallError("ibv_reg_dmabuf_mr", c.takes)
				}
				return register(pd, uintptr(iova), n, access)
			}
			sys := t.TempDir()
			if c.module != "" {
				if err := os.MkdirAll(filepath.Join(sys, filepath.Dir(c.module)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(sys, c.module), []byte("1.0\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			ends, errs := tryJoin(t, 1, func(int) Options { return Options{API: api, Sys: sys} })
			if errs[0] != nil {
				t.Fatal(errs[0])
			}
			got, err := ends[0].RegisterGPU(g, device.At(addr, size))
			if err != nil || got.Path != c.want || (got.RKey != 0) != (c.want != Staging) {
				t.Fatalf("got %+v, %v, want %s", got, err, c.want)
			}
			for _, w := range c.why {
				if !strings.Contains(got.Why, w) {
					t.Errorf("%q does not say %q", got.Why, w)
				}
			}
			if (module == 1) != (c.want == PeerMemory) {
				t.Errorf("%d registrations by address", module)
			}
			if c.module == "" && g.asked.Addr()%uintptr(page) != 0 || g.asked.Len()%page != 0 {
				t.Errorf("asked for %d bytes at %#x, which are no whole pages", g.asked.Len(), g.asked.Addr())
			}
			if g.fd > 0 {
				if _, err := unix.FcntlInt(uintptr(g.fd), unix.F_GETFD, 0); err == nil {
					t.Error("the descriptor was left open")
				}
			}
			if _, err := ends[0].RegisterGPU(g, device.Host(make([]byte, 8))); err == nil {
				t.Error("the host's memory is taken for a GPU's")
			}
		})
	}
}
