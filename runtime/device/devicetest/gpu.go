// Package devicetest has a device for tests whose memory the host cannot touch.
package devicetest

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

// GPU is a device whose memory the host cannot touch: it has addresses that are none
// of this process. Its streams run Go functions for the tests; what is tested gets at
// the memory by what it is given for that alone.
type GPU struct {
	t      testing.TB
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

// NewGPU is a device without memory. What is done wrong with it fails t.
func NewGPU(t testing.TB) *GPU { return &GPU{t: t, next: 1 << 40} }

func (g *GPU) Kind() device.Kind { return device.CUDA }
func (g *GPU) String() string    { return "cuda:0" }

func (g *GPU) Alloc(n int) (device.Buffer, error) {
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

func (g *GPU) AllocHost(n int) (device.Buffer, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pinned++
	return device.NewCPU().Alloc(n)
}

func (g *GPU) Free(b device.Buffer) error {
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

func (g *GPU) NewStream(name string) (device.Stream, error) {
	return g.Run(device.NewCPUStream(name, nil)), nil
}

// Run is a stream of g whose work s does.
func (g *GPU) Run(s *device.CPUStream) Stream { return Stream{s, g} }

// Host is where b really lies. A nil device has host memory.
func (g *GPU) Host(b device.Buffer) device.Buffer {
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

// See is t where the host can read and write it.
func (g *GPU) See(t tensor.Tensor) tensor.Tensor {
	return tensor.New(g.Host(t.Buf), t.DType, t.Shape...)
}

// Left fails the test where more memory is left than the given number of pieces, which
// are for others to free.
func (g *GPU) Left(groups int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.blocks) > groups || g.pinned > 0 {
		g.t.Errorf("%d pieces of device memory and %d of pinned memory are left, the group has %d", len(g.blocks), g.pinned, groups)
	}
}

// Stream is a stream of GPU.
type Stream struct {
	*device.CPUStream
	gpu *GPU
}

func (s Stream) Device() device.Device { return s.gpu }

func (s Stream) Copy(dst, src device.Buffer) { s.CPUStream.Copy(s.gpu.Host(dst), s.gpu.Host(src)) }

// Events counts those that were recorded and not released.
func (g *GPU) Events() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.events
}

// event must not be used once it is released.
type event struct {
	device.Event
	gpu      *GPU
	released atomic.Bool
}

func (s Stream) Record() device.Event {
	s.gpu.mu.Lock()
	s.gpu.events++
	s.gpu.mu.Unlock() // for Record waits where the stream's queue is full
	return &event{Event: s.CPUStream.Record(), gpu: s.gpu}
}

func (s Stream) Wait(e device.Event) { s.CPUStream.Wait(e.(*event).use()) }

func (e *event) Release() {
	if e.released.Swap(true) {
		return
	}
	e.gpu.mu.Lock()
	defer e.gpu.mu.Unlock()
	e.gpu.events--
}

func (e *event) Sync(ctx context.Context) error { return e.use().Sync(ctx) }

func (e *event) Since(earlier device.Event) (time.Duration, error) {
	return e.use().Since(earlier.(*event).use())
}

func (e *event) use() device.Event {
	if e.released.Load() {
		e.gpu.t.Error("an event is used after its release")
	}
	return e.Event
}
