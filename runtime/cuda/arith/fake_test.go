package arith

import (
	"encoding/binary"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// onFake is a device whose kernels are launched and do nothing.
func onFake(t *testing.T) (*cudatest.Driver, card) {
	driver := cudatest.Fake(t)
	if _, err := nvrtc.Load(); err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	return driver, open(t)
}

// Each operation launches its kernel on what it was given, with a thread for
// each chunk and no more blocks than fill the device.
func TestLaunches(t *testing.T) {
	driver, c := onFake(t)
	most := c.dev.SMs() * 8
	at := func(dt dtype.DType, n int, addr uintptr) tensor.Tensor {
		return tensor.New(device.At(addr, n*dt.Size()), dt, n)
	}
	sum := c.alloc(8)
	const a, b = uintptr(0x7000000000), uintptr(0x7100000000) // aligned to 16
	for _, x := range []struct {
		do     func()
		kernel string
		blocks int
		params []uint64
	}{
		{func() { c.Convert(c.s, at(dtype.BF16, 5000, a), at(dtype.F32, 5000, b)) }, "convert_bf16_f32", 5, []uint64{uint64(a), uint64(b), 5000, 1}},
		{func() { c.Convert(c.s, at(dtype.F64, 5000, a), at(dtype.F16, 5000, b+2)) }, "convert_f64_f16", 10, []uint64{uint64(a), uint64(b) + 2, 5000, 0}},
		{func() { c.Convert(c.s, at(dtype.F32, 1, a), at(dtype.F32, 1, b)) }, "convert_f32_f32", 1, []uint64{uint64(a), uint64(b), 1, 1}},
		{func() { c.Add(c.s, at(dtype.F32, 1<<33, a), at(dtype.BF16, 1<<33, b)) }, "add_f32_bf16", most, []uint64{uint64(a), uint64(b), 1 << 33, 1}},
		{func() { c.Checksum(c.s, sum, device.At(b+4, 1<<12)) }, "checksum", 1, []uint64{uint64(sum.Addr()), uint64(b) + 4, 1 << 12, 0}},
	} {
		x.do()
		c.sync()
		got := driver.Last()
		if got.Function != x.kernel || got.Blocks != [3]int{x.blocks, 1, 1} || got.Threads != [3]int{256, 1, 1} {
			t.Errorf("launched %s with %v blocks of %v threads, want %s with %d", got.Function, got.Blocks, got.Threads, x.kernel, x.blocks)
		}
		for i, want := range x.params {
			v := binary.LittleEndian.Uint64(got.Params[8*i:])
			if i == len(x.params)-1 {
				v &= 1<<32 - 1 // chunks, and nothing behind it
			}
			if v != want {
				t.Errorf("%s: word %d of the parameters is %#x, want %#x", x.kernel, i, v, want)
			}
		}
	}

	before := driver.Launches()
	nothing := tensor.New(device.Buffer{}, dtype.F32, 0)
	c.Convert(c.s, nothing, nothing)
	c.Add(c.s, nothing, nothing)
	c.Checksum(c.s, sum, device.Buffer{})
	c.sync()
	if n := driver.Launches() - before; n != 0 {
		t.Errorf("%d launches for nothing", n)
	}
}

// What cannot be done fails the stream, and says why.
func TestMistakesFailTheStream(t *testing.T) {
	_, c := onFake(t)
	of := func(dt dtype.DType, n int) tensor.Tensor { return tensor.New(c.alloc(n*dt.Size()), dt, n) }
	f4, f8, i4, raw := of(dtype.F32, 4), of(dtype.F32, 8), of(dtype.I32, 4), c.alloc(18)
	host := tensor.New(device.Of(make([]float32, 4)), dtype.F32, 4)
	odd := tensor.New(raw.Slice(2, 18), dtype.F32, 4)
	for want, do := range map[string]func(s device.Stream){
		"convert of f32[8] to f32[4]: the numbers of elements differ": func(s device.Stream) { c.Convert(s, f4, f8) },
		"convert of f32[4] to f32[4]: host memory":                    func(s device.Stream) { c.Convert(s, f4, host) },
		"add of i32[4] to f32[4]: there is no arithmetic for i32":     func(s device.Stream) { c.Add(s, f4, i4) },
		"add of f32[4] to f32[4]: address":                            func(s device.Stream) { c.Add(s, odd, f4) },
		"checksum of 16 bytes (on the host: true) to 8 bytes":         func(s device.Stream) { c.Checksum(s, raw.Slice(0, 8), host.Buf) },
		"checksum of 16 bytes (on the host: false) to 16 bytes":       func(s device.Stream) { c.Checksum(s, f4.Buf, i4.Buf) },
	} {
		s, err := c.dev.NewStream("mistaken")
		if err != nil {
			t.Fatal(err)
		}
		do(s)
		if err := s.Synchronize(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
		s.Close()
	}
}

// Whatever call fails, New says which, and leaves nothing behind.
func TestNewThatFailsLeavesNothing(t *testing.T) {
	driver, c := onFake(t)
	for call, after := range map[string]int{
		"cuModuleLoadDataEx": 0, "cuModuleGetFunction": 17, "cuFuncGetAttribute": 3,
	} {
		before := driver.Live()
		driver.FailAfter(call, after, cuda.OutOfMemory)
		a, err := New(c.dev)
		driver.Fail(call, 0)
		if err == nil || !strings.Contains(err.Error(), call) {
			t.Errorf("%s failed, and New returned %v, %v", call, a, err)
		}
		if live := driver.Live(); !maps.Equal(live, before) {
			t.Errorf("%s failed, and %v live, %v before", call, live, before)
		}
	}
}

// The kernels go with Close.
func TestCloseReleases(t *testing.T) {
	driver, c := onFake(t)
	before := driver.Live()
	a, err := New(c.dev)
	if err != nil {
		t.Fatal(err)
	}
	if live := driver.Live(); live["modules"] != before["modules"]+1 || live["memory"] != before["memory"] {
		t.Errorf("New made %v from %v", fmt.Sprint(live), fmt.Sprint(before))
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if live := driver.Live(); !maps.Equal(live, before) {
		t.Errorf("%v live after Close, %v before New", live, before)
	}
}
