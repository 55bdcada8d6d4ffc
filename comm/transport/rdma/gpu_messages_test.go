package rdma

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma/rdmatest"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
	"github.com/gorun-dev/gorun/runtime/device"
)

// peermem is a sysfs that shows the module, for memory of the host that stands in for a
// GPU's.
func peermem(t *testing.T) string {
	t.Helper()
	sys := t.TempDir()
	file := filepath.Join(sys, peerModules[0])
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("1.0\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	return sys
}

// standIn is memory that the mesh takes for a GPU's. Go's own would move messages too, but
// nothing may look as if the host touched it.
func standIn(t *testing.T, n int) ([]byte, device.Buffer) {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b, device.At(addressOf(b), n)
}

// joinGPUs makes n ends with memory of n bytes each in the place of a GPU's.
func joinGPUs(t *testing.T, n, bytes int, api *verbs.API, s Settings) (ends []*end, views [][]byte, memory []GPUMemory) {
	t.Helper()
	buffers := make([]device.Buffer, n)
	views, memory = make([][]byte, n), make([]GPUMemory, n)
	for r := range n { // before the ends, which close first
		views[r], buffers[r] = standIn(t, bytes)
	}
	sys := peermem(t)
	ends, errs := tryJoin(t, n, func(int) Options { return Options{API: api, Settings: s, Sys: sys} })
	for r, e := range ends {
		if errs[r] != nil {
			t.Fatal(errs[r])
		}
		var err error
		if memory[r], err = e.RegisterGPU(&fakeGPU{err: errors.New("no")}, buffers[r]); err != nil || memory[r].Path != PeerMemory {
			t.Fatalf("%+v, %v", memory[r], err)
		}
	}
	return ends, views, memory
}

// passRound sends messages of all sizes from memory to memory of GPUs, each rank to the
// next, among messages of the host, and waits for nothing but Step.
func passRound(t *testing.T, ends []*end, views [][]byte, memory []GPUMemory) {
	t.Helper()
	sizes := []int{1, 13, 0, 4096, directLeast - 1, directLeast + 1, 1 << 20, 7}
	errs := make([]error, len(ends))
	var all sync.WaitGroup
	for r, e := range ends {
		all.Go(func() {
			errs[r] = func() error {
				to, from := (r+1)%len(ends), (r+len(ends)-1)%len(ends)
				c, at, half := callAt(1, time.Minute), 0, len(views[r])/2
				for i, n := range sizes {
					var err error
					if fill(views[r][at:at+n], i+r); n == 0 {
						err = errors.Join(e.PostSend(c, to, nil), e.PostRecv(c, from, nil))
					} else {
						err = errors.Join(e.PostSendGPU(c, to, memory[r], at, at+n), e.PostRecvGPU(c, from, memory[r], half+at, half+at+n))
					}
					if err != nil {
						return err
					}
					at += n
				}
				sent, got := 0, 0
				for start := time.Now(); sent < len(sizes) || got < len(sizes); runtime.Gosched() {
					if err := e.Step(c, start); err != nil {
						return err
					}
					for e.Sent(to) {
						sent++
					}
					for e.Received(from) {
						got++
					}
				}
				if err := e.FlushGPU(memory[r]); err != nil {
					return err
				}
				at = half
				for i, n := range sizes {
					want := make([]byte, n)
					fill(want, i+from)
					if string(views[r][at:at+n]) != string(want) {
						return fmt.Errorf("message %d of %d bytes is wrong", i, n)
					}
					at += n
				}
				return nil
			}()
		})
	}
	all.Wait()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
		if e := ends[r]; e.traffic.Sent.Load() != e.traffic.Received.Load() || e.traffic.Sent.Load() == 0 {
			t.Errorf("rank %d: %d bytes sent, %d received", r, e.traffic.Sent.Load(), e.traffic.Received.Load())
		}
	}
}

func TestMessagesOfGPUs(t *testing.T) {
	for _, qps := range []int{1, 3} {
		for _, n := range []int{2, 3} {
			f := newFabric(t)
			ends, views, memory := joinGPUs(t, n, 4<<20, f.API(), Settings{QPs: qps})
			passRound(t, ends, views, memory)
		}
	}
}

func TestMessagesOfGPUsOnDevices(t *testing.T) {
	devices(t)
	ends, views, memory := joinGPUs(t, 2, 4<<20, nil, Settings{Timeout: 14})
	passRound(t, ends, views, memory)
}

// A small message of a GPU's memory never goes through slots of the host.
func TestMessagesOfGPUsAreNotCopied(t *testing.T) {
	f := newFabric(t)
	ends, views, memory := joinGPUs(t, 2, 1<<13, f.API(), Settings{})
	whole := func(at uint64) bool {
		a := uint64(addressOf(views[1]))
		return at >= a && at < a+1<<13
	}
	direct := 0
	f.Fate = func(s *verbs.Send) rdmatest.Fate { // called with the fabric's lock
		if whole(s.Remote) {
			direct++
		}
		return rdmatest.Fate{}
	}
	c := callAt(1, time.Minute)
	if err := errors.Join(ends[1].PostRecvGPU(c, 0, memory[1], 100, 164), ends[0].PostSendGPU(c, 1, memory[0], 0, 64)); err != nil {
		t.Fatal(err)
	}
	both(t, func() error { return ends[0].WaitSend(c, 1) }, func() error { return ends[1].WaitRecv(c, 0) })
	if direct != 1 {
		t.Errorf("%d writes to the GPU's memory", direct)
	}
}

func both(t *testing.T, waits ...func() error) {
	t.Helper()
	var all sync.WaitGroup
	for _, w := range waits {
		all.Go(func() {
			if err := w(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// Memory that is not registered cannot be the other end; memory from Alloc can.
func TestMessagesBetweenGPUAndHost(t *testing.T) {
	for name, f := range map[string]func(e []*end, g []GPUMemory, c *transport.Call) (failing func() error){
		"to plain memory": func(e []*end, g []GPUMemory, c *transport.Call) func() error {
			got := make([]byte, 64)
			if err := errors.Join(e[1].PostRecv(c, 0, got), e[0].PostSendGPU(c, 1, g[0], 0, 64)); err != nil {
				return func() error { return err }
			}
			go e[1].WaitRecv(c, 0) // ends with the test, without a message
			return func() error { return e[0].WaitSend(c, 1) }
		},
		"from plain memory": func(e []*end, g []GPUMemory, c *transport.Call) func() error {
			if err := errors.Join(e[1].PostRecvGPU(c, 0, g[1], 0, 64), e[0].PostSend(c, 1, make([]byte, 64))); err != nil {
				return func() error { return err }
			}
			return func() error { return e[1].WaitRecv(c, 0) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			ends, _, memory := joinGPUs(t, 2, 4096, newFabric(t).API(), Settings{})
			err := f(ends, memory, callAt(1, time.Minute))()
			if !errors.Is(err, ErrUnregistered) {
				t.Fatalf("got %v", err)
			}
			says(t, err, "rank", "host", "64 bytes")
		})
	}
	ends, views, memory := joinGPUs(t, 2, 4096, newFabric(t).API(), Settings{})
	got, err := ends[1].Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	fill(views[0], 5)
	c := callAt(1, time.Minute)
	if err := errors.Join(ends[1].PostRecv(c, 0, got), ends[0].PostSendGPU(c, 1, memory[0], 32, 96)); err != nil {
		t.Fatal(err)
	}
	both(t, func() error { return ends[0].WaitSend(c, 1) }, func() error { return ends[1].WaitRecv(c, 0) })
	if string(got) != string(views[0][32:96]) {
		t.Error("what arrived is not what was sent")
	}
	for _, bad := range []error{
		ends[0].PostSendGPU(c, 1, memory[0], 0, 4097), ends[0].PostSendGPU(c, 1, memory[0], 5, 5),
		ends[0].PostRecvGPU(c, 1, GPUMemory{Path: Staging}, 0, 1), ends[0].FlushGPU(GPUMemory{Path: Staging}),
	} {
		if bad == nil {
			t.Error("a message of no registered memory is taken")
		}
	}
}

// Step fails as a wait would.
func TestStepEnds(t *testing.T) {
	step := func(e *end, c *transport.Call) error {
		for start := time.Now(); ; runtime.Gosched() {
			if err := e.Step(c, start); err != nil {
				return err
			}
		}
	}
	t.Run("late", func(t *testing.T) {
		ends, _, memory := joinGPUs(t, 2, 64, newFabric(t).API(), Settings{})
		c := callAt(7, time.Millisecond)
		if err := ends[0].PostRecvGPU(c, 1, memory[0], 0, 64); err != nil {
			t.Fatal(err)
		}
		if late, ok := errors.AsType[*transport.TimeoutError](step(ends[0], c)); !ok || late.Peer != 1 || late.Call.Seq != 7 {
			t.Errorf("got %v", late)
		}
	})
	t.Run("dead", func(t *testing.T) {
		ends, _, memory := joinGPUs(t, 2, 64, newFabric(t).API(), Settings{})
		ends[1].Abort(errors.New("dead"))
		if err := ends[1].Close(); err != nil {
			t.Fatal(err)
		}
		c := callAt(1, time.Minute)
		if err := ends[0].PostRecvGPU(c, 1, memory[0], 0, 64); err != nil {
			t.Fatal(err)
		}
		says(t, step(ends[0], c), "does not answer", "host1")
	})
	t.Run("left", func(t *testing.T) {
		ends, _, memory := joinGPUs(t, 2, 64, newFabric(t).API(), Settings{})
		if err := ends[1].Close(); err != nil {
			t.Fatal(err)
		}
		c := callAt(1, time.Minute)
		if err := errors.Join(ends[0].Step(c, time.Now()), ends[0].PostSendGPU(c, 1, memory[0], 0, 64)); err != nil {
			t.Fatal(err)
		}
		says(t, step(ends[0], c), "closed the group")
	})
}

// A flush reads what was written, over the device; one that fails ends the mesh.
func TestFlush(t *testing.T) {
	f := newFabric(t)
	ends, views, memory := joinGPUs(t, 1, 64, f.API(), Settings{})
	reads := 0
	status := verbs.Success
	f.Fate = func(s *verbs.Send) rdmatest.Fate {
		if s.Op == verbs.Read && s.Remote == uint64(addressOf(views[0])) {
			reads++
		}
		return rdmatest.Fate{Status: status}
	}
	for range 3 {
		if err := ends[0].FlushGPU(memory[0]); err != nil {
			t.Fatal(err)
		}
	}
	if reads != 3 {
		t.Errorf("%d reads", reads)
	}
	status = verbs.RemoteAccess
	if err := ends[0].FlushGPU(memory[0]); err == nil {
		t.Error("a read that failed is a flush")
	}
	if err := ends[0].Step(callAt(1, time.Minute), time.Now()); err == nil {
		t.Error("the mesh goes on")
	}
}
