package cuda_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

const text = `
struct mixed { char flag; int n; short s; double x; float *p; float y; };
extern "C" __global__ void echo(mixed m, double *out) {
	out[0] = m.flag, out[1] = m.n, out[2] = m.s, out[3] = m.x, out[4] = (double)(unsigned long long)m.p, out[5] = m.y;
}
struct add_args { const float *a, *b; float *c; long long n; };
extern "C" __global__ void add(add_args p) {
	long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
	if (i < p.n) p.c[i] = p.a[i] + p.b[i];
}
struct spin_args { long long ns; unsigned *out; unsigned value; };
extern "C" __global__ void spin(spin_args p) {
	unsigned long long start, now;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
	do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while ((long long)(now - start) < p.ns);
	if (p.out) *p.out = p.value;
}
struct store_args { unsigned *out; unsigned value; };
extern "C" __global__ void store(store_args p) { *p.out = p.value; }
struct sum_args { const unsigned char *in; int n; unsigned *out; };
extern "C" __global__ void sum(sum_args p) {
	extern __shared__ unsigned char room[];
	for (int i = 0; i < p.n; i++) room[i] = p.in[i];
	unsigned s = 0;
	for (int i = 0; i < p.n; i++) s += room[i];
	*p.out = s;
}`

type (
	mixed struct {
		Flag int8
		N    int32
		S    int16
		X    float64
		P    uintptr
		Y    float32
	}
	echoArgs struct {
		M   mixed
		Out uintptr
	}
	addArgs struct {
		A, B, C uintptr
		N       int64
	}
	spinArgs struct {
		NS    int64
		Out   uintptr
		Value uint32
	}
	storeArgs struct {
		Out   uintptr
		Value uint32
	}
	sumArgs struct {
		In  uintptr
		N   int32
		Out uintptr
	}
)

var one = cuda.Grid{Blocks: cuda.Dim{X: 1}, Threads: cuda.Dim{X: 1}}

// gpus opens n real GPUs, or skips the test.
func gpus(t testing.TB, n int) []*cuda.Device {
	t.Helper()
	feature := "gpu"
	if n > 1 {
		feature = fmt.Sprintf("gpu:%d", n)
	}
	count, err := cuda.Count()
	if err != nil {
		testenv.Skip(t, feature, err.Error())
	}
	if count < n {
		testenv.Skip(t, feature, fmt.Sprintf("%d GPUs are visible", count))
	}
	var all []*cuda.Device
	for i := range n {
		d, err := cuda.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
		if d.Name() == "Fake GPU" {
			testenv.Skip(t, feature, "the GPUs are fake")
		}
		all = append(all, d)
	}
	return all
}

func limit(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("a minute is over"))
	t.Cleanup(cancel)
	return ctx
}

func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func start(t testing.TB, d *cuda.Device, name string) *cuda.Stream {
	t.Helper()
	return must(d.NewStream(name))(t).(*cuda.Stream)
}

func kernel(t testing.TB, d *cuda.Device, name string) *cuda.Function {
	t.Helper()
	m := must(nvrtc.Module(d, "test.cu", text))(t)
	return must(m.Function(name))(t)
}

func check(t testing.TB, s *cuda.Stream) {
	t.Helper()
	if err := s.Synchronize(limit(t)); err != nil {
		t.Fatal(err)
	}
}

// differ names the first place where got is not want.
func differ[T comparable](got, want []T) string {
	for i := range want {
		if got[i] != want[i] {
			return fmt.Sprintf("index %d of %d: got %v, want %v", i, len(want), got[i], want[i])
		}
	}
	return ""
}

// pattern differs between any two places that a wrong offset would confuse.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*31 + i>>8*7 + i>>16*13)
	}
	return b
}

// Without a GPU too, the kernels of these tests compile, and the fake driver finds
// that what they are launched with fits.
func TestTheKernelsBelowFit(t *testing.T) {
	f := cudatest.Fake(t)
	if _, err := nvrtc.Load(); err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	d := must(cuda.Open(0))(t)
	s := start(t, d, "s")
	cuda.Launch(s, kernel(t, d, "echo"), one, &echoArgs{})
	cuda.Launch(s, kernel(t, d, "add"), one, &addArgs{})
	cuda.Launch(s, kernel(t, d, "spin"), one, &spinArgs{})
	cuda.Launch(s, kernel(t, d, "store"), one, &storeArgs{})
	cuda.Launch(s, kernel(t, d, "sum"), one, &sumArgs{})
	if err := d.Close(); err != nil || f.Launches() != 5 {
		t.Errorf("%d of 5 kernels were launched, %v", f.Launches(), err)
	}
}

func TestGPUSaysWhatItIs(t *testing.T) {
	d := gpus(t, 1)[0]
	major, minor := d.Arch()
	free, total, err := d.Memory()
	dmaj, dmin, verr := cuda.DriverVersion()
	t.Logf("%v: %s, compute capability %d.%d, %d SMs, %s, %d of %d bytes free, driver knows CUDA %d.%d",
		d, d.Name(), major, minor, d.SMs(), d.UUID(), free, total, dmaj, dmin)
	if err != nil || verr != nil || d.Name() == "" || major < 5 || d.SMs() < 1 || free <= 0 || free > total {
		t.Errorf("memory: %v, version: %v", err, verr)
	}
	if len(d.UUID()) != len("GPU-00112233-4455-6677-8899-aabbccddee00") {
		t.Errorf("UUID %q", d.UUID())
	}
}

func TestGPUNewMemoryIsZero(t *testing.T) {
	d := gpus(t, 1)[0]
	s := start(t, d, "s")
	const n = 32<<20 + 3
	h := must(d.AllocHost(n))(t)
	for range 3 { // the second time around, memory is likely to be used anew
		b := must(d.Alloc(n))(t)
		s.Copy(h, b)
		check(t, s)
		if i := slices.IndexFunc(h.Bytes(), func(x byte) bool { return x != 0 }); i >= 0 {
			t.Fatalf("byte %d of new memory is %#x", i, h.Bytes()[i])
		}
		s.Copy(b, device.Host(slices.Repeat([]byte{0xAB}, n)))
		check(t, s)
		if d.Held() != n {
			t.Errorf("%d bytes held", d.Held())
		}
		if err := d.Free(b); err != nil {
			t.Error(err)
		}
	}
	if err := d.Free(h); err != nil {
		t.Error(err)
	}
}

func TestGPUCopies(t *testing.T) {
	d := gpus(t, 1)[0]
	s := start(t, d, "s")
	for _, n := range []int{1, 3, 4097, 1<<20 + 1, 64 << 20} {
		want := pattern(n)
		a, b := must(d.Alloc(n))(t), must(d.Alloc(n))(t)
		pinned := must(d.AllocHost(n))(t)
		copy(pinned.Bytes(), want)

		s.Copy(a, pinned)
		s.Copy(b, a)
		back := make([]byte, n)
		s.Copy(device.Host(back), b)
		check(t, s)
		if why := differ(back, want); why != "" {
			t.Fatalf("%d bytes, from pinned to plain memory: %s", n, why)
		}
		s.Clear(a)
		s.Copy(a, device.Host(want))
		clear(pinned.Bytes())
		s.Copy(pinned, a)
		check(t, s)
		if why := differ(pinned.Bytes(), want); why != "" {
			t.Fatalf("%d bytes, from plain to pinned memory: %s", n, why)
		}
		if n > 2 { // the middle, at odd addresses
			s.Copy(b.Slice(1, n-1), pinned.Slice(0, n-2))
			s.Copy(device.Host(back[:n-2]), b.Slice(1, n-1))
			check(t, s)
			if why := differ(back[:n-2], want[:n-2]); why != "" {
				t.Fatalf("%d bytes at odd addresses: %s", n-2, why)
			}
		}
		for _, x := range []device.Buffer{a, b, pinned} {
			if err := d.Free(x); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestGPUCopySpeed(t *testing.T) {
	d := gpus(t, 1)[0]
	s := start(t, d, "s")
	const n = 256 << 20
	a := must(d.Alloc(n))(t)
	pinned := must(d.AllocHost(n))(t)
	plain := make([]byte, n)
	mapped := must(syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE))(t)
	unregister := must(d.Register(mapped))(t)
	for _, c := range []struct {
		what string
		host device.Buffer
	}{{"plain", device.Host(plain)}, {"pinned", pinned}, {"registered", device.Host(mapped)}} {
		for _, way := range []struct {
			what     string
			dst, src device.Buffer
		}{{"to the GPU", a, c.host}, {"to the host", c.host, a}} {
			best := math.Inf(1)
			for range 3 {
				from := s.Record()
				s.Copy(way.dst, way.src)
				to := s.Record()
				check(t, s)
				best = min(best, must(to.Since(from))(t).Seconds())
			}
			t.Logf("%s memory %s: %.1f GB/s", c.what, way.what, n/best/1e9)
		}
	}
	if err := unregister(); err != nil {
		t.Error(err)
	}
	if err := syscall.Munmap(mapped); err != nil {
		t.Error(err)
	}
}

// The parameters arrive as C lays them out.
func TestGPULaunchHandsOverParameters(t *testing.T) {
	d := gpus(t, 1)[0]
	s := start(t, d, "s")
	out := must(d.Alloc(6 * 8))(t)
	cuda.Launch(s, kernel(t, d, "echo"), one, &echoArgs{mixed{-1, -5, -300, math.Pi, 1 << 47, 1.5}, out.Addr()})
	got := make([]float64, 6)
	s.Copy(device.Of(got), out)
	check(t, s)
	if want := []float64{-1, -5, -300, math.Pi, 1 << 47, 1.5}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestGPULaunchThatDoesNotFit(t *testing.T) {
	d := gpus(t, 1)[0]
	add, sum := kernel(t, d, "add"), kernel(t, d, "sum")
	major, minor, err := cuda.DriverVersion()
	if err != nil {
		t.Fatal(err)
	}
	for want, launch := range map[string]func(s *cuda.Stream){
		"takes 32 bytes of parameters": func(s *cuda.Stream) { cuda.Launch(s, add, one, &struct{ A uintptr }{}) },
		"add, 1x1x1 blocks of 4096x1x1 threads": func(s *cuda.Stream) {
			cuda.Launch(s, add, cuda.Grid{Blocks: cuda.Dim{X: 1}, Threads: cuda.Dim{X: 4096}}, &addArgs{})
		},
		"100000 bytes of shared memory": func(s *cuda.Stream) {
			cuda.Launch(s, sum, cuda.Grid{Blocks: cuda.Dim{X: 1}, Threads: cuda.Dim{X: 1}, Shared: 100000}, &sumArgs{})
		},
	} {
		if strings.HasPrefix(want, "takes") && major*1000+minor*10 < 12040 {
			t.Logf("CUDA %d.%d does not tell the size of parameters", major, minor)
			continue
		}
		s := start(t, d, "s")
		launch(s)
		if err := s.Close(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		} else {
			t.Log(err)
		}
	}
}

func TestGPUSharedMemoryBeyondTheDefault(t *testing.T) {
	d := gpus(t, 1)[0]
	s := start(t, d, "s")
	most := must(d.Attribute(cuda.SharedPerBlockOptIn))(t)
	sum := kernel(t, d, "sum")
	if err := sum.SetShared(most); err != nil {
		t.Fatal(err)
	}
	in, out := must(d.Alloc(most))(t), must(d.Alloc(4))(t)
	bytes := pattern(most)
	var want uint32
	for _, b := range bytes {
		want += uint32(b)
	}
	s.Copy(in, device.Host(bytes))
	cuda.Launch(s, sum, cuda.Grid{Blocks: cuda.Dim{X: 1}, Threads: cuda.Dim{X: 1}, Shared: most}, &sumArgs{in.Addr(), int32(most), out.Addr()})
	got := make([]uint32, 1)
	s.Copy(device.Of(got), out)
	check(t, s)
	if got[0] != want {
		t.Errorf("%d bytes sum up to %d, want %d", most, got[0], want)
	}
	n, err := sum.Occupancy(1, most)
	t.Logf("%d bytes of static shared memory, %d blocks with %d bytes", sum.SharedBytes(), n, most)
	if err != nil || n != 1 {
		t.Errorf("%d blocks fit, %v", n, err)
	}
}

func TestGPUManyGoroutinesLaunch(t *testing.T) {
	d := gpus(t, 1)[0]
	add := kernel(t, d, "add")
	const n = 1<<16 + 5
	var wg sync.WaitGroup
	for g := range 16 {
		s := start(t, d, fmt.Sprint("s", g))
		a, b, c := must(d.Alloc(4*n))(t), must(d.Alloc(4*n))(t), must(d.Alloc(4*n))(t)
		wg.Go(func() {
			x, y, want := make([]float32, n), make([]float32, n), make([]float32, n)
			for i := range x {
				x[i], y[i] = float32(i+g), float32(2*i)
				want[i] = x[i] + y[i]
			}
			s.Copy(a, device.Of(x))
			s.Copy(b, device.Of(y))
			for range 20 {
				cuda.Launch(s, add, cuda.Grid{Blocks: cuda.Dim{X: (n + 255) / 256}, Threads: cuda.Dim{X: 256}}, &addArgs{a.Addr(), b.Addr(), c.Addr(), n})
				runtime.Gosched()
			}
			got := make([]float32, n)
			s.Copy(device.Of(got), c)
			if err := s.Synchronize(limit(t)); err != nil {
				t.Error(err)
			}
			runtime.KeepAlive([]any{x, y})
			if why := differ(got, want); why != "" {
				t.Errorf("goroutine %d: %s", g, why)
			}
		})
	}
	wg.Wait()
}

// A stream that waits for another's event sees its work, and the host does not
// wait for either.
func TestGPUEventsOrderStreams(t *testing.T) {
	d := gpus(t, 1)[0]
	a, b := start(t, d, "a"), start(t, d, "b")
	spin := kernel(t, d, "spin")
	word, seen := must(d.Alloc(4))(t), must(d.AllocHost(4))(t)
	const ns = 100e6
	began := time.Now()
	first := a.Record()
	cuda.Launch(a, spin, one, &spinArgs{ns, word.Addr(), 4711})
	last := a.Record()
	b.Wait(last)
	b.Copy(seen, word)
	enqueued := time.Since(began)
	if _, err := last.Since(first); err == nil || !strings.Contains(err.Error(), "not reached") {
		t.Errorf("after %v the kernel of 100 ms is done: %v", enqueued, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := b.Synchronize(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait of 5 ms: %v", err)
	}
	check(t, b)
	if got := device.View[uint32](seen)[0]; got != 4711 {
		t.Errorf("the second stream copied %d: it did not wait", got)
	}
	took := must(last.Since(first))(t)
	t.Logf("enqueued in %v, the kernel took %v", enqueued, took)
	if took < 99*time.Millisecond || took > time.Second {
		t.Errorf("a kernel of 100 ms took %v", took)
	}
}

func TestGPUStreamsRunAtTheSameTime(t *testing.T) {
	d := gpus(t, 1)[0]
	a, b := start(t, d, "a"), start(t, d, "b")
	spin := kernel(t, d, "spin")
	both := func(x, y *cuda.Stream) time.Duration {
		began := time.Now()
		cuda.Launch(x, spin, one, &spinArgs{NS: 50e6})
		cuda.Launch(y, spin, one, &spinArgs{NS: 50e6})
		check(t, x)
		check(t, y)
		return time.Since(began)
	}
	both(a, b)
	behind, beside := both(a, a), both(a, b)
	t.Logf("two kernels of 50 ms: %v on one stream, %v on two", behind, beside)
	if beside > behind*3/4 {
		t.Errorf("two streams do not overlap: %v on one, %v on two", behind, beside)
	}
}

// A stream of high priority gets ahead of blocks that wait.
func TestGPUPriority(t *testing.T) {
	d := gpus(t, 1)[0]
	high, low := must(d.NewPriorityStream("high", true))(t), must(d.NewPriorityStream("low", false))(t)
	spin := kernel(t, d, "spin")
	crowd := cuda.Grid{Blocks: cuda.Dim{X: d.SMs() * 64}, Threads: cuda.Dim{X: 1024}}
	began := time.Now()
	cuda.Launch(low, spin, crowd, &spinArgs{NS: 5e6})
	cuda.Launch(high, spin, one, &spinArgs{NS: 1e6})
	check(t, high)
	first := time.Since(began)
	check(t, low)
	all := time.Since(began)
	t.Logf("high priority after %v, all after %v", first, all)
	if first > all*3/4 {
		t.Errorf("high priority ended after %v of %v", first, all)
	}
}

func TestGPUOutOfMemory(t *testing.T) {
	d := gpus(t, 1)[0]
	held := must(d.Alloc(1 << 20))(t)
	_, total, err := d.Memory()
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Alloc(int(total) + 1<<30)
	var e *cuda.OutOfMemoryError
	if !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
	t.Log(err)
	if e.Want != total+1<<30 || e.Total != total || e.Held != 1<<20 || e.Free <= 0 || e.Free > total {
		t.Errorf("%+v", e)
	}
	s := start(t, d, "s") // and all goes on
	s.Fill32(held, 5)
	check(t, s)
}

func TestGPUStreamMemoryOperations(t *testing.T) {
	d := gpus(t, 1)[0]
	a, b := start(t, d, "a"), start(t, d, "b")
	onGPU, host, seen := must(d.Alloc(8))(t), must(d.AllocHost(8))(t), must(d.AllocHost(8))(t)
	between := must(d.Alloc(8))(t) // a copy from host memory to host memory would wait for the stream, and the host with it
	for what, flag := range map[string]device.Buffer{"device": onGPU, "host": host} {
		a.WaitValue32(flag.Addr(), 3)
		a.Copy(between, flag)
		a.Copy(seen, between)
		waits := a.Record()
		b.WriteValue32(flag.Addr()+4, 9)
		b.WriteValue32(flag.Addr(), 2)
		check(t, b)
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := waits.Sync(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s memory: the wait for 3 ended at 2: %v", what, err)
		}
		cancel()
		if what == "host" {
			atomic.StoreUint32(&device.View[uint32](flag)[0], 4) // 4 is beyond 3
		} else {
			b.WriteValue32(flag.Addr(), 4)
		}
		check(t, a)
		if got := device.View[uint32](seen); got[0] != 4 || got[1] != 9 {
			t.Errorf("%s memory: saw %v", what, got)
		}
	}
}

func TestGPUPool(t *testing.T) {
	d := gpus(t, 1)[0]
	s := start(t, d, "s")
	p := must(d.NewPool(64 << 20))(t)
	store := kernel(t, d, "store")
	for i := range 100 {
		b := must(p.Alloc(s, 1<<20))(t)
		s.Clear(b)
		cuda.Launch(s, store, one, &storeArgs{b.Addr() + 4, uint32(i)})
		got := make([]uint32, 2)
		s.Copy(device.Of(got), b.Slice(0, 8))
		p.Free(s, b)
		check(t, s)
		if got[0] != 0 || got[1] != uint32(i) {
			t.Fatalf("round %d: %v", i, got)
		}
	}
	reserved, used, err := p.Size()
	t.Logf("%d bytes reserved, %d used", reserved, used)
	if err != nil || used != 0 || reserved < 1<<20 || reserved > 64<<20 {
		t.Errorf("%d bytes reserved, %d used, %v", reserved, used, err)
	}
	if err := p.Trim(0); err != nil {
		t.Error(err)
	}
	if left, _, err := p.Size(); err != nil || left > reserved {
		t.Errorf("%d bytes are reserved after Trim, %d before, %v", left, reserved, err)
	}
	_, total, err := d.Memory()
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Alloc(s, int(total)+1<<30)
	if e := (*cuda.OutOfMemoryError)(nil); !errors.As(err, &e) {
		t.Errorf("more than there is: %v", err)
	}
}

func TestGPUTensorMap(t *testing.T) {
	d := gpus(t, 1)[0]
	if major, _ := d.Arch(); major < 9 {
		t.Skipf("tensor maps are of compute capability 9.0, this GPU's is %d", major)
	}
	b := must(d.Alloc(128 * 1024 * 2))(t)
	tile := cuda.Tile{Type: cuda.TileBF16, Addr: b.Addr(), Dims: []uint64{128, 1024}, Strides: []uint64{256}, Box: []uint32{64, 128}, Swizzle: cuda.Swizzle128, Promotion: cuda.Promote256}
	var m, other cuda.TensorMap
	if err := d.EncodeTiled(&m, tile); err != nil {
		t.Fatal(err)
	}
	tile.Box[1] = 64
	if err := d.EncodeTiled(&other, tile); err != nil {
		t.Fatal(err)
	}
	if m == (cuda.TensorMap{}) || m == other {
		t.Errorf("maps %x and %x", m, other)
	}
	tile.Box[0] = 512
	if err := d.EncodeTiled(&m, tile); err == nil {
		t.Error("a box of 512 was accepted")
	} else {
		t.Log(err)
	}
}

func TestGPUDMABuf(t *testing.T) {
	d := gpus(t, 1)[0]
	if must(d.Attribute(cuda.DMABuf))(t) == 0 {
		t.Skip("this GPU's driver has no dma-buf")
	}
	b := must(d.Alloc(4 << 20))(t)
	skip := int(-b.Addr() & (2<<20 - 1))
	fd, err := d.HandleForAddressRange(b.Slice(skip, skip+2<<20))
	var e *cuda.Error
	if errors.As(err, &e) && e.Code == cuda.NotSupported {
		t.Skipf("the attribute is set, but: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Close(fd); err != nil {
		t.Error(err)
	}
}

// child runs one test of this binary as another process, which finds payload in
// the environment and has done what it should when it prints "done".
func child(t *testing.T, test, payload string) string {
	t.Helper()
	ctx := limit(t)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+test+"$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), "GORUN_TEST_CHILD="+payload)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "done") {
		t.Fatalf("the other process: %v: %s", err, out)
	}
	return string(out)
}

// An access of memory that is not there ends the context of its process, so it
// is tried in another one: it must come out as an error of each stream, and Close
// must end.
func TestGPUIllegalAddress(t *testing.T) {
	if os.Getenv("GORUN_TEST_CHILD") == "" {
		gpus(t, 1)
		t.Log(child(t, "TestGPUIllegalAddress", "yes"))
		return
	}
	d := must(cuda.Open(0))(t)
	a, b, waits := start(t, d, "a"), start(t, d, "b"), start(t, d, "waits")
	cuda.Launch(a, kernel(t, d, "store"), one, &storeArgs{0x10, 1})
	waits.Wait(a.Record())
	for what, err := range map[string]error{"the stream": a.Synchronize(limit(t)), "who waits for it": waits.Err(), "another stream": b.Synchronize(limit(t))} {
		if err == nil || !strings.HasPrefix(err.Error(), "cuda:0: stream ") || !strings.Contains(err.Error(), ": cu") || !strings.Contains(err.Error(), "CUDA_ERROR_ILLEGAL_ADDRESS") {
			t.Errorf("%s: %v", what, err)
		} else {
			t.Logf("%s: %v", what, err)
		}
	}
	if err := d.Close(); err == nil {
		t.Error("Close has no error")
	}
	fmt.Println("done")
}

func TestGPUProcessesShareMemory(t *testing.T) {
	if payload := os.Getenv("GORUN_TEST_CHILD"); payload != "" {
		useShared(t, payload)
		return
	}
	d := gpus(t, 1)[0]
	s := start(t, d, "s")
	b := must(d.Alloc(1 << 20))(t)
	part := b.Slice(4096, 8192)
	cuda.Launch(s, kernel(t, d, "store"), one, &storeArgs{part.Addr(), 4711})
	check(t, s)
	payload := must(json.Marshal(must(d.ShareMemory(part))(t)))(t)
	t.Log(child(t, "TestGPUProcessesShareMemory", string(payload)))
	got := make([]uint32, 1)
	s.Copy(device.Of(got), part.Slice(4, 8))
	check(t, s)
	if got[0] != 815 {
		t.Errorf("the other process wrote %d", got[0])
	}
}

func useShared(t *testing.T, payload string) {
	var in cuda.SharedMemory
	if err := json.Unmarshal([]byte(payload), &in); err != nil {
		t.Fatal(err)
	}
	d := must(cuda.Open(0))(t)
	s := start(t, d, "s")
	b := must(d.OpenMemory(in))(t)
	got := make([]uint32, 1)
	s.Copy(device.Of(got), b.Slice(0, 4))
	cuda.Launch(s, kernel(t, d, "store"), one, &storeArgs{b.Addr() + 4, 815})
	check(t, s)
	if b.Len() != 4096 || got[0] != 4711 {
		t.Errorf("%d bytes, the first word is %d", b.Len(), got[0])
	}
	if err := d.CloseMemory(in, b); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	fmt.Println("done")
}

func TestGPUPeers(t *testing.T) {
	all := gpus(t, 2)
	a, b := all[0], all[1]
	const n = 256 << 20
	x, y := must(a.Alloc(n))(t), must(b.Alloc(n))(t)
	s := start(t, a, "s")
	copies := func() {
		want := pattern(n)
		s.Copy(x, device.Host(want))
		from := s.Record()
		s.Copy(y, x)
		to := s.Record()
		s.Clear(x)
		s.Copy(x, y)
		got := make([]byte, n)
		s.Copy(device.Host(got), x)
		check(t, s)
		t.Logf("%.1f GB/s", n/must(to.Since(from))(t).Seconds()/1e9)
		if why := differ(got, want); why != "" {
			t.Fatal(why)
		}
	}
	copies()
	for range 2 {
		err := a.EnablePeerAccess(b)
		if e := (*cuda.Error)(nil); errors.As(err, &e) && e.Name == "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" {
			t.Skipf("copies went through the host: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	copies()
	cuda.Launch(s, kernel(t, a, "store"), one, &storeArgs{y.Addr(), 4711})
	other := start(t, b, "other")
	other.Wait(s.Record()) // an event of the other GPU
	got := make([]uint32, 1)
	other.Copy(device.Of(got), y.Slice(0, 4))
	check(t, other)
	if got[0] != 4711 {
		t.Errorf("the other GPU's memory holds %d", got[0])
	}
}

// What a launch costs the host, alone and with its context made current.
func BenchmarkGPULaunch(b *testing.B) {
	d := gpus(b, 1)[0]
	s := start(b, d, "s")
	store := kernel(b, d, "store")
	args := storeArgs{must(d.Alloc(4))(b).Addr(), 1}
	b.ReportAllocs()
	for b.Loop() {
		cuda.Launch(s, store, one, &args)
	}
	check(b, s)
}

func BenchmarkGPURecordAndWait(b *testing.B) {
	d := gpus(b, 1)[0]
	s, other := start(b, d, "s"), start(b, d, "other")
	b.ReportAllocs()
	for b.Loop() {
		e := s.Record().(*cuda.Event)
		other.Wait(e)
		e.Release()
	}
	check(b, other)
}

// A round trip: the host waits for each launch.
func BenchmarkGPUSynchronize(b *testing.B) {
	d := gpus(b, 1)[0]
	s := start(b, d, "s")
	store := kernel(b, d, "store")
	args := storeArgs{must(d.Alloc(4))(b).Addr(), 1}
	for b.Loop() {
		cuda.Launch(s, store, one, &args)
		check(b, s)
	}
}
