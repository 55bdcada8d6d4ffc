package attention

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// bench is a fake Hopper, which takes kernels that are compiled in earnest.
type bench struct {
	*testing.T
	driver *cudatest.Driver
	env    *nv.Env
	s      *cuda.Stream
}

func newBench(t *testing.T) bench {
	if _, err := nvrtc.Load(); err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	driver := cudatest.Fake(t)
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if live := driver.Live(); len(live) != 0 {
			t.Errorf("left over: %v", live)
		}
	})
	s, err := d.NewPriorityStream("test", false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // the error is the test's to judge
	env := nv.NewEnv(d)
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	return bench{t, driver, env, s}
}

func (b bench) tensor(dt dtype.DType, shape ...int) tensor.Tensor {
	x, err := tensor.Alloc(b.s.Device(), dt, shape...)
	if err != nil {
		b.Fatal(err)
	}
	return x
}

// latest is the latest launch, with its parameters as T. Tensor maps may begin behind
// the place from which the driver counts.
func latest[T any](b bench) (cudatest.Launch, T) {
	b.Helper()
	kerntest.Wait(b, b.s)
	l := b.driver.Last()
	var args T
	size := int(unsafe.Sizeof(args))
	skip := len(l.Params) - size
	if skip < -4 || skip >= 64 { // Go rounds a struct's size up, C does not round a list's
		b.Fatalf("%s took %d bytes of parameters, want %d", l.Function, len(l.Params), size)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&args)), size), l.Params[max(skip, 0):])
	return l, args
}

// Each pass launches what its path has, over grids that cover the tensors, with the
// addresses of the heads' first elements.
func TestCUDALaunches(t *testing.T) {
	b := newBench(t)
	const B, T, H, K = 3, 1000, 6, 2
	for _, x := range []struct {
		hopper, docs            bool
		D                       int
		path                    string
		forward, dkv, dq        int // blocks
		forwardShared, dqShared int
	}{
		{true, false, 64, "wgmma", B * H * 6, B * K * 8, 132, 114768, 114736},
		{true, true, 64, "wgmma", B * H * 6, B * K * 8, B * H * 8, 114768, 114736},
		{true, false, 128, "wgmma", 132, B * K * 8, 132, 196688, 196672},
		{true, false, 80, "mma", B * H * 8, B * K * 8, B * H * 8, 65536, 98304},
		{false, true, 64, "mma", B * H * 8, B * K * 8, B * H * 8, 49152, 49152},
		{false, false, 128, "mma", B * H * 8, B * K * 8, B * H * 8, 65536, 98304},
	} {
		n, err := newNative(b.env, x.hopper)
		if err != nil {
			t.Fatal(err)
		}
		c := CUDA{native: n, choice: newChoice("native", n)}
		if err := c.Prepare(B, T, H, K, x.D, x.docs, true); err != nil {
			t.Fatal(err)
		}
		E := H + 2*K
		qkv, dqkv := b.tensor(dtype.BF16, B, T, E, x.D), b.tensor(dtype.BF16, B, T, E, x.D)
		o, do, lse := b.tensor(dtype.BF16, B, T, H, x.D), b.tensor(dtype.BF16, B, T, H, x.D), b.tensor(dtype.F32, B, H, T)
		var docs tensor.Tensor
		if x.docs {
			docs = b.tensor(dtype.I32, B, T)
		}
		head := uintptr(2 * x.D)
		strides := [4]int64{int64(T * E * x.D), int64(E * x.D), int64(T * H * x.D), int64(H * x.D)}
		held := b.env.Device.Held()

		c.Attention(b.s, o, lse, qkv, docs)
		var l cudatest.Launch
		var f forwardArgs
		if x.path == "wgmma" {
			var a struct {
				qkv cuda.TensorMap
				forwardArgs
			}
			l, a = latest[struct {
				qkv cuda.TensorMap
				forwardArgs
			}](b)
			f = a.forwardArgs
			if at := *(*uintptr)(unsafe.Pointer(&a.qkv)); at != qkv.Buf.Addr() {
				t.Errorf("%+v: the map describes %#x, want qkv at %#x", x, at, qkv.Buf.Addr())
			}
		} else {
			l, f = latest[forwardArgs](b)
		}
		if l.Function != "attention_forward_"+x.path || l.Blocks[0] != x.forward || l.Shared != x.forwardShared {
			t.Errorf("%+v: forward is %s on %v blocks with %d bytes", x, l.Function, l.Blocks, l.Shared)
		}
		q := qkv.Buf.Addr()
		want := forwardArgs{q, q + H*head, q + (H+K)*head, o.Buf.Addr(), lse.Buf.Addr(), docs.Buf.Addr(),
			strides[0], strides[1], strides[2], strides[3], B, H, K, T, softmaxScale(x.D)}
		if f != want {
			t.Errorf("%+v: forward takes %+v, want %+v", x, f, want)
		}

		before := b.driver.Launches()
		c.AttentionBackward(b.s, dqkv, do, o, lse, qkv, docs)
		kerntest.Wait(t, b.s)
		if n := b.driver.Launches() - before; n != 3 {
			t.Errorf("%+v: backward launched %d kernels, want 3", x, n)
		}
		var g backwardArgs
		if x.path == "wgmma" {
			var a struct {
				qkv, do cuda.TensorMap
				backwardArgs
			}
			l, a = latest[struct {
				qkv, do cuda.TensorMap
				backwardArgs
			}](b)
			g = a.backwardArgs
			if at := *(*uintptr)(unsafe.Pointer(&a.do)); at != do.Buf.Addr() {
				t.Errorf("%+v: the map describes %#x, want do at %#x", x, at, do.Buf.Addr())
			}
		} else {
			l, g = latest[backwardArgs](b)
		}
		if l.Function != "attention_dq_"+x.path || l.Blocks[0] != x.dq || l.Shared != x.dqShared {
			t.Errorf("%+v: dq is %s on %v blocks with %d bytes", x, l.Function, l.Blocks, l.Shared)
		}
		dq := dqkv.Buf.Addr()
		if g.dq != dq || g.dk != dq+H*head || g.dv != dq+(H+K)*head || g.q != want.q || g.k != want.k || g.v != want.v ||
			g.do != do.Buf.Addr() || g.lse != want.lse || g.delta == 0 || g.docs != want.docs ||
			[4]int64{g.sb, g.st, g.osb, g.ost} != strides || g.B != B || g.H != H || g.K != K || g.T != T || g.scale != want.scale {
			t.Errorf("%+v: backward takes %+v", x, g)
		}
		if blocks := n.kernels[kernelID{dkv, x.D, x.docs}].grid(B*K, T, 132, x.docs).Blocks.X; blocks != x.dkv {
			t.Errorf("%+v: dkv on %d blocks", x, blocks)
		}
		if b.env.Device.Held() != held {
			t.Errorf("%+v: the calls took %d bytes that Prepare had not", x, b.env.Device.Held()-held)
		}
	}
	// One map a tensor and layout, however often it is used.
	if n := b.driver.Calls("cuTensorMapEncodeTiled"); n != 6 {
		t.Errorf("%d tensor maps were made, want one of qkv and one of do in each of 3 cases", n)
	}
}

func TestCUDANextLaunches(t *testing.T) {
	b := newBench(t)
	c, err := NewCUDA(b.env, "auto")
	if err != nil {
		t.Fatal(err)
	}
	const T, H, K, D, P, pos = 5, 14, 2, 64, 40, 30
	qkv, o := b.tensor(dtype.BF16, 1, T, H+2*K, D), b.tensor(dtype.BF16, 1, T, H, D)
	keys, values := b.tensor(dtype.BF16, P, K, D), b.tensor(dtype.BF16, P, K, D)
	c.AttentionNext(b.s, o, keys, values, qkv, pos)
	l, got := latest[nextArgs](b)
	want := nextArgs{qkv.Buf.Addr(), keys.Buf.Addr(), values.Buf.Addr(), o.Buf.Addr(), T, H, K, D, pos, 0.125}
	if got != want || l.Function != "attention_next" || l.Blocks != [3]int{T * H, 1, 1} || l.Threads != [3]int{256, 1, 1} || b.driver.Launches() != 2 {
		t.Errorf("launch %d is %s on %v blocks of %v with %+v, want %+v", b.driver.Launches(), l.Function, l.Blocks, l.Threads, got, want)
	}
}

// Errors of the driver stay on the stream and say what failed; those that Prepare
// meets come back from it.
func TestCUDAErrors(t *testing.T) {
	const invalid, noMemory = 1, 2
	for _, x := range []struct {
		call string
		code cuda.Result
		what string
	}{
		{"cuTensorMapEncodeTiled", invalid, "attention: "},
		{"cuModuleGetFunction", invalid, "attention_forward_wgmma"},
		{"cuFuncSetAttribute", invalid, "dynamic shared memory"},
		{"cuMemAlloc", noMemory, "scratch memory of attention"},
	} {
		t.Run(x.call, func(t *testing.T) {
			b := newBench(t)
			c, err := NewCUDA(b.env, "native")
			if err != nil {
				t.Fatal(err)
			}
			qkv, o, lse := b.tensor(dtype.BF16, 1, 9, 4, 64), b.tensor(dtype.BF16, 1, 9, 2, 64), b.tensor(dtype.F32, 1, 2, 9)
			b.driver.Fail(x.call, x.code)
			if x.call != "cuTensorMapEncodeTiled" {
				if err := c.Prepare(1, 9, 2, 1, 64, false, true); err == nil || !strings.Contains(err.Error(), x.what) {
					t.Errorf("Prepare: %v", err)
				}
			}
			c.Attention(b.s, o, lse, qkv, tensor.Tensor{})
			c.AttentionBackward(b.s, qkv, o, o, lse, qkv, tensor.Tensor{})
			if err := b.s.Err(); err == nil || !strings.Contains(err.Error(), x.what) || !strings.Contains(err.Error(), x.call) {
				t.Errorf("the stream's error is %v", err)
			}
			b.driver.Fail(x.call, 0)
		})
	}
}

// "cudnn" is refused at once where cuDNN is missing, "auto" says so and goes on.
func TestCUDAWithoutCUDNN(t *testing.T) {
	b := newBench(t)
	t.Setenv("GORUN_CUDNN_LIB", t.TempDir()+"/libcudnn.so.9")
	if _, err := NewCUDA(b.env, "cudnn"); err == nil || !strings.Contains(err.Error(), "cuDNN") {
		t.Errorf("cuDNN is there: %v", err)
	}
	c, err := NewCUDA(b.env, "auto")
	if err != nil {
		t.Fatal(err)
	}
	if text := c.Explain(1, 4096, 12, 2, 128); !strings.HasPrefix(text, "attention: native (wgmma): ") || !strings.Contains(text, "cuDNN") {
		t.Error(text)
	}
	if n, err := c.Workspace(2, 100, 12, 2, 128, false, true); err != nil || n != 4*2*100*12 {
		t.Errorf("%d bytes of scratch memory: %v", n, err)
	}
	if _, err := NewCUDA(b.env, "fast"); err == nil || !strings.Contains(err.Error(), "auto, native or cudnn") {
		t.Errorf("there is an implementation named fast: %v", err)
	}
}
