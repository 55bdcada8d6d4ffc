// Package gputest is what the tests of the CUDA operations share: a GPU, tensors
// on it, a comparator and a yardstick for memory bandwidth. Host tensors and
// random numbers come from kerntest.
package gputest

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// open opens the first GPU once a process; it is closed by the process's end.
var open = sync.OnceValues(func() (*cuda.Device, error) { return cuda.Open(0) })

// Device is the first GPU. The test is skipped without one; the feature's name is "gpu".
func Device(t testing.TB) *cuda.Device {
	t.Helper()
	d, err := open()
	if err != nil {
		testenv.Skip(t, "gpu", err.Error())
	}
	return d
}

// NeedMemory skips the test unless the first GPU has n free bytes; the feature's
// name is "gpu-memory".
func NeedMemory(t testing.TB, n int64) {
	t.Helper()
	free, _, err := Device(t).Memory()
	if err != nil {
		t.Fatal(err)
	}
	if free < n {
		testenv.Skip(t, "gpu-memory", fmt.Sprintf("%d MiB, of which %d are free", n>>20, free>>20))
	}
}

// Env is an environment on the first GPU and a stream. Both end with the test.
func Env(t testing.TB) (*nv.Env, *cuda.Stream) {
	t.Helper()
	d := Device(t)
	env := nv.NewEnv(d)
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := d.NewStream("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // the error is Wait's to report
	return env, nv.Stream(s)
}

// New is a tensor of 0xFF bytes on the device, which are NaN in every floating
// type, so that an output that nobody wrote shows. It lives as long as the test.
func New(t testing.TB, s *cuda.Stream, dt dtype.DType, shape ...int) tensor.Tensor {
	t.Helper()
	x, err := tensor.Alloc(s.Device(), dt, shape...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Device().Free(x.Buf); err != nil {
			t.Error(err)
		}
	})
	Poison(t, s, x)
	return x
}

// Poison fills tensors with 0xFF bytes.
func Poison(t testing.TB, s *cuda.Stream, xs ...tensor.Tensor) {
	t.Helper()
	for _, x := range xs {
		b := x.Buf
		words := b.Len() / 4 * 4
		if b.Addr()%4 != 0 {
			words = 0
		}
		s.Fill32(b.Slice(0, words), 0xffffffff)
		s.Copy(b.Slice(words, b.Len()), device.Host(bytes.Repeat([]byte{0xff}, b.Len()-words)))
	}
	kerntest.Wait(t, s)
}

// Upload is a copy on the device of the host tensor x. An f32 tensor is rounded to
// dt first; other types are copied as they are.
func Upload(t testing.TB, s *cuda.Stream, x tensor.Tensor, dt dtype.DType) tensor.Tensor {
	t.Helper()
	host := x
	if x.DType != dt {
		host = tensor.New(device.Host(make([]byte, x.Numel()*dt.Size())), dt, x.Shape...)
		vec.Narrow(dt, host.Buf.Bytes(), x.F32())
	}
	y := New(t, s, dt, x.Shape...)
	s.Copy(y.Buf, host.Buf)
	kerntest.Wait(t, s)
	return y
}

// Shifted is a copy of the device tensor x that begins one element behind an aligned
// address, as views into larger tensors may.
func Shifted(t testing.TB, s *cuda.Stream, x tensor.Tensor) tensor.Tensor {
	t.Helper()
	size := x.DType.Size()
	room := New(t, s, x.DType, x.Numel()+1)
	y := tensor.New(room.Buf.Slice(size, room.Buf.Len()), x.DType, x.Shape...)
	s.Copy(y.Buf, x.Buf)
	kerntest.Wait(t, s)
	return y
}

// Download is a copy on the host, of the same type.
func Download(t testing.TB, s *cuda.Stream, x tensor.Tensor) tensor.Tensor {
	t.Helper()
	host := tensor.New(device.Host(make([]byte, x.Buf.Len())), x.DType, x.Shape...)
	s.Copy(host.Buf, x.Buf)
	kerntest.Wait(t, s)
	return host
}

// Twice poisons outs, runs op, and does both again. It fails the test unless both
// runs left the same bits, and returns host copies. op must set what it works on
// in place, such as by Stream.Copy from a tensor of its own.
func Twice(t testing.TB, s *cuda.Stream, op func(), outs ...tensor.Tensor) []tensor.Tensor {
	t.Helper()
	var runs [2][]tensor.Tensor
	for i := range runs {
		Poison(t, s, outs...)
		op()
		kerntest.Wait(t, s)
		for _, x := range outs {
			runs[i] = append(runs[i], Download(t, s, x))
		}
	}
	for i, x := range runs[0] {
		kerntest.Equal(t, fmt.Sprintf("output %d of two runs", i), x, runs[1][i])
	}
	return runs[0]
}

// BF16 rounds the f32 host tensor x to bfloat16 values, in place, and returns it.
func BF16(x tensor.Tensor) tensor.Tensor {
	xs := x.F32()
	for i, v := range xs {
		xs[i] = dtype.BF16To(dtype.BF16From(v))
	}
	return x
}

// Floats widens the elements of a host tensor of any floating type.
func Floats(x tensor.Tensor) []float64 {
	if x.DType == dtype.F64 {
		return x.F64()
	}
	wide := make([]float32, x.Numel())
	vec.Widen(x.DType, wide, x.Buf.Bytes())
	out := make([]float64, len(wide))
	for i, v := range wide {
		out[i] = float64(v)
	}
	return out
}
