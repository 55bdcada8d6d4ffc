package cuda

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
)

func TestNewMemoryIsZero(t *testing.T) {
	f := cudatest.Fake(t) // gives memory full of 0xCD
	d := open(t, f)
	s := stream(t, d, "s")
	b := alloc(t, d, 1000)
	h, err := d.AllocHost(1000)
	if err != nil {
		t.Fatal(err)
	}
	if !h.OnHost() || b.OnHost() || h.Len() != 1000 || b.Len() != 1000 || b.Addr()%256 != 0 {
		t.Errorf("%#x on the host: %v; %#x on the host: %v", h.Addr(), h.OnHost(), b.Addr(), b.OnHost())
	}
	zero := make([]byte, 1000)
	if !slices.Equal(h.Bytes(), zero) {
		t.Error("host memory is not zero")
	}
	h.Bytes()[5] = 1
	s.Copy(h, b)
	if err := s.Synchronize(deadline(t)); err != nil || !slices.Equal(h.Bytes(), zero) {
		t.Errorf("device memory is not zero, %v", err)
	}
	for _, n := range []int{-1, 0} {
		for _, alloc := range []func(int) (device.Buffer, error){d.Alloc, d.AllocHost} {
			b, err := alloc(n)
			if (err == nil) != (n == 0) || b.Len() != 0 {
				t.Errorf("%d bytes: %v, %v", n, b, err)
			}
			if err := d.Free(b); err != nil {
				t.Error(err)
			}
		}
	}
}

// The GPU sees mapped memory at its address on the host, and it is none of the GPU's own.
func TestMapped(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s := stream(t, d, "s")
	held := d.Held()
	b, err := d.Mapped().Alloc(1000)
	if err != nil {
		t.Fatal(err)
	}
	if b.OnHost() || b.Len() != 1000 || d.Held() != held {
		t.Errorf("%d bytes, on the host: %t, %d more on the GPU", b.Len(), b.OnHost(), d.Held()-held)
	}
	seen := make([]byte, 1000)
	for i := range seen {
		seen[i] = 1
	}
	s.Copy(device.Host(seen), b)
	if err := s.Synchronize(deadline(t)); err != nil || !slices.Equal(seen, make([]byte, 1000)) {
		t.Errorf("mapped memory is not zero, %v", err)
	}
	if _, err := d.Mapped().Alloc(-1); err == nil {
		t.Error("-1 bytes were allocated")
	}
	if none, err := d.Mapped().Alloc(0); err != nil || none.Len() != 0 {
		t.Errorf("no bytes: %v, %v", none, err)
	}
	if err := d.Free(b); err != nil {
		t.Error(err)
	}
}

func TestFree(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	b := alloc(t, d, 1000)
	for what, wrong := range map[string]device.Buffer{
		"a slice":        b.Slice(0, 500),
		"the rest":       b.Slice(500, 1000),
		"other memory":   device.At(4096, 1000),
		"memory of Go's": device.Host(make([]byte, 8)),
	} {
		if err := d.Free(wrong); err == nil || !strings.Contains(err.Error(), "cuda:0: free of") {
			t.Errorf("free of %s: %v", what, err)
		}
	}
	if d.Held() != 1000 {
		t.Errorf("%d bytes held", d.Held())
	}
	if err := d.Free(b); err != nil {
		t.Error(err)
	}
	if d.Held() != 0 || d.Peak() != 1000 {
		t.Errorf("%d bytes held, at most %d", d.Held(), d.Peak())
	}
	alloc(t, d, 999)
	if d.Peak() != 1000 {
		t.Errorf("at most %d bytes held", d.Peak())
	}
	if err := d.Free(b); err == nil {
		t.Error("freed twice")
	}
}

func TestOutOfMemorySaysWhatWasHeld(t *testing.T) {
	f := cudatest.FakeOf(t, cudatest.Machine{Memory: 4 << 20})
	d := open(t, f)
	other, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	alloc(t, d, 3<<20)
	alloc(t, other, 1<<19)
	_, err = d.Alloc(1 << 20)
	var e *OutOfMemoryError
	if !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
	if e.Device != "cuda:0" || e.Want != 1<<20 || e.Free != 1<<19 || e.Total != 4<<20 || e.Held != 3<<20 {
		t.Errorf("%+v", e)
	}
	const want = "cuda:0: cuMemAlloc(1048576): out of memory (CUDA_ERROR_OUT_OF_MEMORY): 1.0 MiB wanted, 524288 bytes of 4.0 MiB free, 3.0 MiB held by this process"
	if err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	var call *Error
	if !errors.As(err, &call) || call.Code != OutOfMemory {
		t.Errorf("the driver's error is %v", call)
	}
	p, err := d.NewPool(0)
	if err != nil {
		t.Fatal(err)
	}
	s := stream(t, d, "s")
	if _, err := p.Alloc(s, 1<<20); !errors.As(err, &e) || s.Err() != nil {
		t.Errorf("a pool: %v; its stream: %v", err, s.Err())
	}
	f.Fail("cuMemGetInfo", 999)
	if _, err := d.Alloc(1 << 20); err == nil || !strings.Contains(err.Error(), "CUDA_ERROR_OUT_OF_MEMORY") || !strings.Contains(err.Error(), "cuMemGetInfo") {
		t.Errorf("without the figures: %v", err)
	}
}

// Memory that cannot be zeroed is not given out, and not lost.
func TestAllocThatCannotZero(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	f.Fail("cuMemsetD8Async", 999)
	if _, err := d.Alloc(100); err == nil || !strings.Contains(err.Error(), "cuMemsetD8Async(100 bytes") {
		t.Errorf("got %v", err)
	}
	f.Fail("cuMemsetD8Async", 0)
	if d.Held() != 0 || f.Live()["memory"] != 0 {
		t.Errorf("%d bytes held, alive: %v", d.Held(), f.Live())
	}
}

func TestPool(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s := stream(t, d, "s")
	p, err := d.NewPool(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Alloc(s, 100)
	if err != nil {
		t.Fatal(err)
	}
	if _, used, err := p.Size(); used != 100 || err != nil || d.Held() != 100 {
		t.Errorf("%d bytes used, %d held, %v", used, d.Held(), err)
	}
	if err := d.Free(b); err == nil {
		t.Error("Device.Free took a pool's memory")
	}
	p.Free(s, b)
	if err := s.Synchronize(deadline(t)); err != nil || d.Held() != 0 {
		t.Errorf("%d held, %v", d.Held(), err)
	}
	left, err := p.Alloc(s, 100)
	if err != nil {
		t.Fatal(err)
	}
	s.Fail(errors.New("peer is gone"))
	if _, err := p.Alloc(s, 100); err == nil || err.Error() != "peer is gone" {
		t.Errorf("Alloc on a failed stream: %v", err)
	}
	p.Free(s, left) // even so, nothing is lost
	if n := f.Live()["memory"]; n != 0 {
		t.Errorf("%d pieces of memory are left", n)
	}
	other := stream(t, d, "other")
	p.Free(other, left)
	if err := other.Err(); err == nil || !strings.Contains(err.Error(), "not of this pool") {
		t.Errorf("freed twice: %v", err)
	}
}

func TestSharedMemory(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s := stream(t, d, "s")
	b := alloc(t, d, 1024)
	s.Fill32(b.Slice(256, 512), 7)
	if err := s.Synchronize(deadline(t)); err != nil {
		t.Fatal(err)
	}
	m, err := d.ShareMemory(b.Slice(256, 512))
	if err != nil {
		t.Fatal(err)
	}
	if m.Offset != 256 || m.Len != 256 {
		t.Errorf("%d bytes at %d", m.Len, m.Offset)
	}
	o, err := d.OpenMemory(m)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]uint32, 64)
	s.Copy(device.Of(got), o)
	if err := s.Synchronize(deadline(t)); err != nil || got[0] != 7 || got[63] != 7 {
		t.Errorf("read %v, %v", got, err)
	}
	if d.Held() != 1024 {
		t.Errorf("memory of another process counts: %d held", d.Held())
	}
	if err := d.Free(o); err == nil {
		t.Error("Free took another process's memory")
	}
	if err := d.CloseMemory(m, o); err != nil {
		t.Error(err)
	}
	if err := d.CloseMemory(m, o); err == nil {
		t.Error("closed twice")
	}
}
