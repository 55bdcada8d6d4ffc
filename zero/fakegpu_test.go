package zero

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// fakeGPU is a device whose memory the host cannot touch: it has addresses that
// are none of this process. Its streams run Go functions for the tests; a Zero
// gets at the memory by fakeMemory alone.
type fakeGPU struct {
	t      *testing.T
	mu     sync.Mutex
	next   uintptr
	blocks []piece // in the order of their addresses; guarded by mu, as next is
	pinned int     // pieces of AllocHost's that are not freed; guarded by mu
	events int     // that were recorded and not released; guarded by mu
}

type piece struct {
	addr uintptr
	data []byte
}

func newFakeGPU(t *testing.T) *fakeGPU { return &fakeGPU{t: t, next: 1 << 40} }

func (g *fakeGPU) Kind() device.Kind { return device.CUDA }
func (g *fakeGPU) String() string    { return "cuda:0" }

func (g *fakeGPU) Alloc(n int) (device.Buffer, error) {
	if n == 0 {
		return device.Buffer{}, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	b := piece{g.next, make([]byte, n)}
	g.blocks = append(g.blocks, b)
	g.next += uintptr(n+256) &^ 255
	return device.At(b.addr, n), nil
}

func (g *fakeGPU) AllocHost(n int) (device.Buffer, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pinned++
	return device.NewCPU().Alloc(n)
}

func (g *fakeGPU) Free(b device.Buffer) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b.OnHost() {
		g.pinned--
		return nil
	}
	n := len(g.blocks)
	g.blocks = slices.DeleteFunc(g.blocks, func(x piece) bool { return x.addr == b.Addr() && len(x.data) == b.Len() })
	if len(g.blocks) == n {
		return fmt.Errorf("free of %d bytes at %#x, which were not allocated", b.Len(), b.Addr())
	}
	return nil
}

func (g *fakeGPU) NewStream(name string) (device.Stream, error) {
	return fakeStream{device.NewCPUStream(name, nil), g}, nil
}

// host is where b really lies. A nil device has host memory.
func (g *fakeGPU) host(b device.Buffer) device.Buffer {
	if b.OnHost() {
		return b
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, x := range g.blocks {
		if from := int(b.Addr()) - int(x.addr); from >= 0 && from+b.Len() <= len(x.data) {
			return device.Host(x.data[from : from+b.Len()])
		}
	}
	panic(fmt.Sprintf("%d bytes at %#x are no memory of the device", b.Len(), b.Addr()))
}

// see is t where the host can read and write it.
func (g *fakeGPU) see(t tensor.Tensor) tensor.Tensor {
	return tensor.New(g.host(t.Buf), t.DType, t.Shape...)
}

// left fails the test when a Zero has left memory behind. The rest is its group's.
func (g *fakeGPU) left(groups int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.blocks) > groups || g.pinned > 0 {
		g.t.Errorf("%d pieces of device memory and %d of pinned memory are left, the group has %d", len(g.blocks), g.pinned, groups)
	}
}

type fakeStream struct {
	*device.CPUStream
	gpu *fakeGPU
}

func (s fakeStream) Device() device.Device { return s.gpu }

func (s fakeStream) Copy(dst, src device.Buffer) { s.CPUStream.Copy(s.gpu.host(dst), s.gpu.host(src)) }

// fakeEvent must not be used once it is released.
type fakeEvent struct {
	device.Event
	gpu      *fakeGPU
	released atomic.Bool
}

func (s fakeStream) Record() device.Event {
	s.gpu.mu.Lock()
	s.gpu.events++
	s.gpu.mu.Unlock() // for Record waits where the stream's queue is full
	return &fakeEvent{Event: s.CPUStream.Record(), gpu: s.gpu}
}

func (s fakeStream) Wait(e device.Event) { s.CPUStream.Wait(e.(*fakeEvent).use()) }

func (e *fakeEvent) Release() {
	if e.released.Swap(true) {
		return
	}
	e.gpu.mu.Lock()
	defer e.gpu.mu.Unlock()
	e.gpu.events--
}

func (e *fakeEvent) Sync(ctx context.Context) error { return e.use().Sync(ctx) }

func (e *fakeEvent) Since(earlier device.Event) (time.Duration, error) {
	return e.use().Since(earlier.(*fakeEvent).use())
}

func (e *fakeEvent) use() device.Event {
	if e.released.Load() {
		e.gpu.t.Error("an event is used after its release")
	}
	return e.Event
}

// fakeMemory does to memory of a fakeGPU, on its streams, what host does elsewhere.
type fakeMemory struct{ gpu *fakeGPU }

func (m fakeMemory) Convert(s device.Stream, dst, src tensor.Tensor) {
	host{}.Convert(s.(fakeStream), m.gpu.see(dst), m.gpu.see(src))
}

func (m fakeMemory) Add(s device.Stream, dst, src tensor.Tensor) {
	host{}.Add(s.(fakeStream), m.gpu.see(dst), m.gpu.see(src))
}

func (m fakeMemory) Close() error { return nil }
