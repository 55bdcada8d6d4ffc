package comm

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dl"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// EmulateStreams makes streams of fake GPUs run what staged asks of them one after the
// other, beside the host, and wait where they are to, until the test ends. Events behind
// that are reached when all of it is done. Other work on them is done at once, as ever.
func EmulateStreams(t testing.TB, driver *cudatest.Driver) {
	t.Helper()
	m := newEmulation(driver)
	before := newHand
	newHand = m.of
	t.Cleanup(func() {
		newHand = before
		close(m.over)
		m.running.Wait()
	})
}

// EmulateStreamsHere is EmulateStreams for the whole of a process, with the fake driver
// that its environment names.
func EmulateStreamsHere() error {
	lib, err := dl.Open(dl.Spec{Env: "GORUN_CUDA_LIB", Name: "the fake driver"})
	if err != nil {
		return err
	}
	hold, err := lib.Proc("fake_hold")
	newHand = newEmulation(holds{hold}).of
	return err
}

type holds struct{ proc dl.Proc }

func (h holds) Hold(stream uintptr)    { h.proc.Call(stream, 1) }
func (h holds) Release(stream uintptr) { h.proc.Call(stream, 0) }

// StageBy makes groups that are joined from now on have slots of so many bytes, until the
// test ends.
func StageBy(t testing.TB, bytes int) {
	before := slotBytes
	slotBytes = bytes
	t.Cleanup(func() { slotBytes = before })
}

// holder keeps events on a stream from being reached.
type holder interface {
	Hold(stream uintptr)
	Release(stream uintptr)
}

type emulation struct {
	driver  holder
	over    chan struct{}
	running sync.WaitGroup

	mu      sync.Mutex // guards streams
	streams map[*cuda.Stream]*emulated
}

// emulated is a stream's work that is not done.
type emulated struct {
	m      *emulation
	handle uintptr

	mu   sync.Mutex // guards work
	work []func()
}

func newEmulation(driver holder) *emulation {
	return &emulation{driver: driver, streams: map[*cuda.Stream]*emulated{}, over: make(chan struct{})}
}

func (m *emulation) of(g *Group) hand { return handOf{m, g} }

// handOf is the hand of a group's engine.
type handOf struct {
	*emulation
	g *Group
}

// settle waits until a group has seen its calls on a stream end, whose work is done: to the
// fake driver events on a stream that is held once more have not been reached any more.
func settle(g *Group, s *cuda.Stream) {
	for g.Err() == nil && g.gpu != nil {
		g.mu.Lock()
		flies := slices.ContainsFunc(g.gpu.flights, func(f *flight) bool { return f.stream == s })
		g.mu.Unlock()
		if !flies {
			return
		}
		<-time.After(20 * time.Microsecond)
	}
}

// enqueue holds the stream until its work is done. Failed streams take none.
func (m handOf) enqueue(s *cuda.Stream, f func()) {
	if s.Err() != nil {
		return
	}
	m.mu.Lock()
	q := m.streams[s]
	if q == nil {
		q = &emulated{m: m.emulation, handle: s.Handle()}
		m.streams[s] = q
	}
	m.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work = append(q.work, f)
	if len(q.work) == 1 {
		settle(m.g, s)
		m.driver.Hold(q.handle)
		m.running.Add(1)
		go q.routineRun()
	}
}

// routineRun does what is enqueued. One per stream with work, started by enqueue, ends
// with the work.
func (q *emulated) routineRun() {
	defer q.m.running.Done()
	for {
		q.mu.Lock()
		f := q.work[0]
		q.mu.Unlock()
		f()
		q.mu.Lock()
		q.work = q.work[1:]
		if len(q.work) == 0 {
			q.m.driver.Release(q.handle)
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
	}
}

func (m handOf) copy(s *cuda.Stream, dst, src device.Buffer) {
	m.enqueue(s, func() { byGPU(memoryOf(dst), memoryOf(src)) })
}

func (m handOf) write(s *cuda.Stream, word uintptr, v uint32) {
	m.enqueue(s, func() { atomic.StoreUint32(wordAt(word), v) })
}

func (m handOf) wait(s *cuda.Stream, word uintptr, v uint32) {
	s.WaitValue32(word, v) // which looks at the address
	m.enqueue(s, func() {
		for int32(atomic.LoadUint32(wordAt(word))-v) < 0 {
			select {
			case <-m.over:
				return
			case <-time.After(20 * time.Microsecond): // one that spins keeps others from the network
			}
		}
	})
}

// module has the kernels of gpudirect.cu, as far as the fake driver looks.
func (m handOf) module(d *cuda.Device, name, _ string) (*cuda.Module, error) {
	kernels := map[string][]int{}
	for _, dt := range dtype.All {
		kernels[foldName(dt)] = []int{int(unsafe.Sizeof(foldArgs{}))}
	}
	return d.LoadModule(name, cudatest.Module(kernels))
}

func (m handOf) fold(s *cuda.Stream, f *cuda.Function, g cuda.Grid, args *foldArgs) {
	ofGPU{}.fold(s, f, g, args) // which looks at the arguments
	a := *args
	m.enqueue(s, func() { foldOnHost(f.Name(), a) })
}

// foldOnHost is what the kernel of that name does.
func foldOnHost(kernel string, a foldArgs) {
	dt, err := dtype.Parse(strings.TrimPrefix(kernel, "fold_"))
	if err != nil {
		panic(err)
	}
	n := int(a.n) * dt.Size()
	of := func(addr uintptr) []byte { return memoryOf(device.At(addr, n)) }
	c := call{}
	c.DType, c.Op = dt, Op(a.op)
	c.reduce(of(a.dst), of(a.a), of(a.b))
	if a.divide > 0 {
		c.finish(of(a.dst), int(a.divide))
	}
}

// byGPU copies what others synchronise by words in memory of C's, which the race detector
// does not see; nor would it see a GPU.
//
//go:norace
func byGPU(dst, src []byte) {
	const line = 64
	i := 0
	for ; i+line <= len(src); i += line { // copy has a look of its own for races
		*(*[line]byte)(dst[i:]) = *(*[line]byte)(src[i:])
	}
	for ; i < len(src); i++ {
		dst[i] = src[i]
	}
}

func wordAt(addr uintptr) *uint32 { return *(**uint32)(unsafe.Pointer(&addr)) }

// memoryOf is memory of a fake GPU, or of the host.
func memoryOf(b device.Buffer) []byte {
	if b.OnHost() {
		return b.Bytes()
	}
	addr := b.Addr()
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), b.Len())
}
