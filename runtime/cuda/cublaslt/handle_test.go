package cublaslt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cublaslt/fakelt"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// square is a product of bf16 matrices as a layer's forward pass has it: its second
// factor is transposed.
func (b *bed) square(t *testing.T, n int) (d, x, y operand) {
	return b.operand(t, dtype.BF16, n, n, 0, 0, false), b.operand(t, dtype.BF16, n, n, 0, 0, false), b.operand(t, dtype.BF16, n, n, 0, 0, true)
}

// What the library is asked for is the transpose of everything.
func TestLibrarySeesColumnMajor(t *testing.T) {
	f := newFake(t)
	f.lt.Offer(fakelt.Good)
	b := newBed(f.dev, f.stream, f.handle(t, 1<<20))
	x := b.operand(t, dtype.BF16, 6, 4, 1, 2, false)   // [N,I], rows 5 apart
	w := b.operand(t, dtype.BF16, 4, 10, 2, 256, true) // [O,I], rows 6 apart
	y := b.operand(t, dtype.F32, 6, 10, 3, 8, false)   // [N,O], rows 13 apart
	r := b.operand(t, dtype.F32, 6, 10, 4, 4, false)   // rows 14 apart
	bias := b.operand(t, dtype.F32, 1, 10, 0, 16, false)
	b.h.MatMul(f.stream, y.Matrix, x.Matrix, w.Matrix, bias.Addr, r.Matrix)
	wait(t, f.stream)
	got := f.lt.Record()
	space := b.h.spaces[f.stream.Handle()]
	want := fakelt.Record{
		M: 10, N: 6, K: 4, LDA: 6, LDB: 5, LDC: 14, LDD: 13, TransA: 1, TransB: 0,
		TypeA: 14, TypeB: 14, TypeC: 0, TypeD: 0, Epilogue: 4, Algorithm: fakelt.Good,
		A: uint64(w.Addr), B: uint64(x.Addr), C: uint64(r.Addr), D: uint64(y.Addr), Bias: uint64(bias.Addr),
		Workspace: uint64(space.Addr()), WorkspaceBytes: 1 << 20, Stream: uint64(f.stream.Handle()),
		Alpha: 1, Beta: 1,
		PrefWorkspace: 1 << 20, PrefReductions: 2, PrefAlign: [4]uint64{256, 2, 4, 8}, Requested: 16,
		Products: got.Products, Searches: got.Searches, Live: got.Live,
	}
	if got != want {
		t.Errorf("the library saw\n%+v, want\n%+v", got, want)
	}
}

func TestAlignment(t *testing.T) {
	for addr, want := range map[uintptr]uint16{0x1000: 256, 0x1080: 16, 0x1040: 16, 0x1010: 16, 0x1008: 8, 0x1004: 4, 0x1002: 2, 0x1001: 1, 0x1300: 256} {
		if got := alignment(addr); got != want {
			t.Errorf("alignment(%#x) = %d, want %d", addr, got, want)
		}
	}
}

func TestFastestAlgorithmIsTaken(t *testing.T) {
	f := newFake(t)
	b := newBed(f.dev, f.stream, f.handle(t, 0))
	d, x, y := b.square(t, 16)
	b.h.MatMul(f.stream, d.Matrix, x.Matrix, y.Matrix, 0, Matrix{})
	wait(t, f.stream)
	first := f.lt.Record()
	if first.Algorithm != fakelt.Good || first.Searches == 0 || first.Products < 10 {
		t.Errorf("algorithm %d after %d searches and %d products, want %d, timed", first.Algorithm, first.Searches, first.Products, fakelt.Good)
	}
	if uint64(d.Addr) != first.D {
		t.Error("the last product is not the caller's")
	}
	// From then on a product is one call of the library.
	b.h.MatMul(f.stream, d.Matrix, x.Matrix, y.Matrix, 0, Matrix{})
	next := f.lt.Record()
	if next.Products != first.Products+1 || next.Searches != first.Searches {
		t.Errorf("%d products and %d searches for one more call", next.Products-first.Products, next.Searches-first.Searches)
	}
	choices := b.h.Choices()
	if len(choices) != 1 || choices[0].From != "timed" || choices[0].Time <= 0 ||
		choices[0].Machine != "Fake GPU, driver of CUDA 13.0, cuBLASLt 13.1.0" ||
		choices[0].Product != "m=16 n=16 k=16 a=bf16/16@256 b=bf16T/16@256 d=bf16/16@256" ||
		!strings.HasPrefix(choices[0].Algorithm, "id 2 ") {
		t.Errorf("choices %+v", choices)
	}
	if v := b.h.Version(); v != "13.1.0" { // where the library lies is no part of it
		t.Errorf("version %q", v)
	}
	// Another layout is another product.
	bias := b.operand(t, dtype.BF16, 1, 16, 0, 0, false)
	b.h.MatMul(f.stream, d.Matrix, x.Matrix, y.Matrix, bias.Addr, d.Matrix)
	if n := len(b.h.Choices()); n != 2 {
		t.Errorf("%d choices for two products", n)
	}
	// Timing uses memory of its own, and gives it back.
	wait(t, f.stream)
	if held := f.dev.Held() - int64(d.buf.Len()+x.buf.Len()+y.buf.Len()+bias.buf.Len()); held != int64(b.h.workspace) {
		t.Errorf("%d bytes are held beside the matrices, want the workspace of %d", held, b.h.workspace)
	}
}

func TestTimingLeavesTheCallersDataAlone(t *testing.T) {
	f := newFake(t)
	b := newBed(f.dev, f.stream, f.handle(t, 0))
	// In place: had the caller's d been used for timing, it would hold many sums.
	b.run(t, trialCase{m: 16, n: 8, k: 24, in: dtype.BF16, out: dtype.F32, tb: true, add: "in place"})
	if n := f.lt.Record().Products; n < 10 {
		t.Errorf("%d products: nothing was timed", n)
	}
}

func TestWrongAlgorithmsArePassedOver(t *testing.T) {
	f := newFake(t)
	f.lt.Offer(fakelt.Short, fakelt.Restless, fakelt.Slow)
	h := f.handle(t, 0)
	b := newBed(f.dev, f.stream, h)
	for _, c := range cases() {
		b.run(t, c)
	}
	for _, c := range h.Choices() {
		if !strings.HasPrefix(c.Algorithm, "id 1 ") {
			t.Errorf("%s takes %s", c.Product, c.Algorithm)
		}
	}
	for _, part := range []string{"computes wrongly", "id 4 ", "id 8 ", "other bits in a second run"} {
		if !strings.Contains(f.log.String(), part) {
			t.Errorf("the log does not say %q", part)
		}
	}
}

func TestNoAlgorithmWorks(t *testing.T) {
	for name, offered := range map[string][]int{
		"none of 1 algorithms of cuBLASLt 13.1.0 works: d[0,0] is": {fakelt.Short},
		"none of 1 algorithms can be launched: cublasLtMatmul":     {fakelt.Refused},
		"cuBLASLt 13.1.0 knows no algorithm for it":                {fakelt.InPlace, fakelt.Hungry},
	} {
		f := newFake(t)
		f.lt.Offer(offered...)
		b := newBed(f.dev, f.stream, f.handle(t, 0))
		d, x, y := b.square(t, 8)
		b.h.MatMul(f.stream, d.Matrix, x.Matrix, y.Matrix, 0, Matrix{})
		err := f.stream.Err()
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "cuda:0: matrix product m=8 n=8 k=8") {
			t.Errorf("algorithms %v: %v, want %q", offered, err, name)
		}
	}
}

func TestFewBytesForTiming(t *testing.T) {
	f := newFake(t)
	f.lt.Offer(fakelt.Good, fakelt.Slow)
	b := newBed(f.dev, f.stream, f.handle(t, 0))
	d, x, y := b.square(t, 16)
	f.gpu.FailAfter("cuMemAlloc", 1, cuda.OutOfMemory) // the first is the workspace
	b.h.MatMul(f.stream, d.Matrix, x.Matrix, y.Matrix, 0, Matrix{})
	if err := f.stream.Err(); err != nil {
		t.Fatal(err)
	}
	r, choices := f.lt.Record(), b.h.Choices()
	if r.Products != 1 || r.Algorithm != fakelt.Slow || choices[0].From != "untimed" {
		t.Errorf("%d products, algorithm %d, choices %+v", r.Products, r.Algorithm, choices)
	}
	if !strings.Contains(f.log.String(), "too little memory to time") {
		t.Errorf("the log says %s", f.log)
	}
	if _, err := os.Stat(b.h.choices.path); !os.IsNotExist(err) {
		t.Errorf("a choice that was not timed is on disk: %v", err)
	}
}

// The stream does not get to the timing, as behind a collective whose peers are gone.
func TestPatienceEnds(t *testing.T) {
	f := newFake(t)
	b := newBed(f.dev, f.stream, f.handle(t, 0))
	d, x, y := b.square(t, 16)
	before := patience
	patience = 20 * time.Millisecond
	defer func() { patience = before }()
	f.gpu.Hold(f.stream.Handle())
	b.h.MatMul(f.stream, d.Matrix, x.Matrix, y.Matrix, 0, Matrix{})
	err := f.stream.Err()
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "timing 3 algorithms: cuda:0: waiting for stream test") {
		t.Errorf("%v", err)
	}
	f.gpu.Release(f.stream.Handle())
}

func TestEachStreamHasItsWorkspace(t *testing.T) {
	f := newFake(t)
	f.lt.Offer(fakelt.Good)
	b := newBed(f.dev, f.stream, f.handle(t, 4096))
	d, x, y := b.square(t, 8)
	seen := map[uint64]bool{}
	for _, s := range []int{0, 1, 1} {
		stream := f.stream
		if s == 1 {
			stream = f.newStream(t)
		}
		b.h.MatMul(stream, d.Matrix, x.Matrix, y.Matrix, 0, Matrix{})
		wait(t, stream)
		seen[f.lt.Record().Workspace] = true
	}
	if len(seen) != 3 {
		t.Errorf("three streams share %d workspaces", len(seen))
	}
}

func TestNothingToDo(t *testing.T) {
	f := newFake(t)
	b := newBed(f.dev, f.stream, f.handle(t, 0))
	_, x, y := b.square(t, 8)
	none := Matrix{DType: dtype.BF16, Rows: 0, Cols: 8, Stride: 8}
	b.h.MatMul(f.stream, none, none, y.Matrix, 0, Matrix{})
	f.stream.Fail(fmt.Errorf("an earlier fault"))
	b.h.MatMul(f.stream, x.Matrix, x.Matrix, y.Matrix, 0, Matrix{})
	if n := f.lt.Record().Products; n != 0 {
		t.Errorf("%d products", n)
	}
}

// A launch allocates nothing.
func TestLaunchAllocatesNothing(t *testing.T) {
	f := newFake(t)
	f.lt.Offer(fakelt.Good)
	b := newBed(f.dev, f.stream, f.handle(t, 0))
	d, x, y := b.square(t, 1)
	bias := b.operand(t, dtype.BF16, 1, 1, 0, 0, false)
	call := func() { b.h.MatMul(f.stream, d.Matrix, x.Matrix, y.Matrix, bias.Addr, d.Matrix) }
	call()
	if n := testing.AllocsPerRun(100, call); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

func TestMatMulRefuses(t *testing.T) {
	f := newFake(t)
	b := newBed(f.dev, f.stream, f.handle(t, 0))
	of := func(rows, cols int) Matrix {
		return Matrix{Addr: 0x1000, DType: dtype.BF16, Rows: rows, Cols: cols, Stride: cols}
	}
	with := func(m Matrix, change func(*Matrix)) Matrix { change(&m); return m }
	none := Matrix{}
	for _, c := range []struct {
		d, a, b Matrix
		bias    uintptr
		c       Matrix
		want    string
	}{
		{of(2, 3), of(2, 4), of(5, 3), 0, none, "d = a·b with d bf16[2 3] stride 3 at 0x1000, a bf16[2 4]"},
		{of(2, 4), of(2, 4), of(4, 3), 0, none, "d = a·b"},
		{of(3, 3), of(2, 4), of(4, 3), 0, none, "d = a·b"},
		{with(of(2, 2), func(m *Matrix) { m.Trans = true }), of(2, 4), of(4, 2), 0, none, "d = a·b"},
		{of(2, 3), with(of(2, 4), func(m *Matrix) { m.Trans = true }), of(4, 3), 0, none, "d = a·b"},
		{of(2, 3), of(2, 0), of(0, 3), 0, none, "a sum over no elements"},
		{of(2, 3), with(of(2, 4), func(m *Matrix) { m.DType = dtype.F16 }), of(4, 3), 0, none, "want one type"},
		{with(of(2, 3), func(m *Matrix) { m.DType = dtype.F16 }), of(2, 4), of(4, 3), 0, none, "want bf16 or f32"},
		{with(of(2, 3), func(m *Matrix) { m.DType = dtype.I32 }), of(2, 4), of(4, 3), 0, none, "d is i32[2 3]"},
		{of(2, 3), of(2, 4), none, 0, none, "b is invalid"},
		{of(2, 3), with(of(2, 4), func(m *Matrix) { m.Stride = 3 }), of(4, 3), 0, none, "a is bf16[2 4] stride 3"},
		{of(2, 3), with(of(2, 4), func(m *Matrix) { m.Addr = 0 }), of(4, 3), 0, none, "a is"},
		{of(2, 3), with(of(2, 4), func(m *Matrix) { m.Addr = 0x1001 }), of(4, 3), 0, none, "a is"},
		{of(2, 3), of(2, 4), of(4, 3), 0x1008, none, "the bias at 0x1008"},
		{of(2, 3), of(2, 4), of(4, 3), 0, of(3, 3), "c is bf16[3 3]"},
		{of(2, 3), of(2, 4), of(4, 3), 0, with(of(2, 3), func(m *Matrix) { m.DType = dtype.F32 }), "c is f32[2 3]"},
		{of(2, 3), of(2, 4), of(4, 3), 0, with(of(2, 3), func(m *Matrix) { m.Stride = 4 }), "c is bf16[2 3] stride 4"},
	} {
		func() {
			defer func() {
				if msg := fmt.Sprint(recover()); !strings.HasPrefix(msg, "cublaslt: ") || !strings.Contains(msg, c.want) {
					t.Errorf("panic %q, want %q", msg, c.want)
				}
			}()
			b.h.MatMul(f.stream, c.d, c.a, c.b, c.bias, c.c)
		}()
	}
}

func TestEveryCallFails(t *testing.T) {
	const status = 14
	for _, call := range []string{"cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate",
		"cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulPreferenceDestroy",
		"cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"} {
		f := newFake(t)
		live := f.lt.Record().Live
		h := f.handle(t, 0)
		b := newBed(f.dev, f.stream, h)
		d, x, y := b.square(t, 8)
		f.lt.Fail(call, status)
		b.h.MatMul(f.stream, d.Matrix, x.Matrix, y.Matrix, 0, d.Matrix)
		f.lt.Fail("", 0)
		err := f.stream.Err()
		if err == nil || !strings.Contains(err.Error(), call) || !strings.Contains(err.Error(), "fake: failed (CUBLAS_STATUS_OTHER, status 14)") {
			t.Errorf("%s fails: %v", call, err)
		}
		// The next stream can multiply, and nothing of the failed plan is left.
		f.lt.Offer(fakelt.Good)
		s := f.newStream(t)
		h.MatMul(s, d.Matrix, x.Matrix, y.Matrix, 0, d.Matrix)
		wait(t, s)
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		leak := f.lt.Record().Live - live
		if want := map[string]int64{"cublasLtMatmulPreferenceDestroy": 1}[call]; leak != want {
			t.Errorf("%s fails: %d objects of the library are left, want %d", call, leak, want)
		}
	}
	f := newFake(t)
	f.lt.Fail("cublasLtCreate", 1)
	_, err := New(f.dev, 0)
	if err == nil || !strings.Contains(err.Error(), "cuda:0: ") || !strings.Contains(err.Error(), "cublasLtCreate: fake: failed (CUBLAS_STATUS_NOT_INITIALIZED, status 1)") {
		t.Errorf("New: %v", err)
	}
	f.lt.Fail("", 0)
	for _, call := range []string{"cublasLtMatmulDescDestroy", "cublasLtMatrixLayoutDestroy", "cublasLtDestroy"} {
		h := f.handle(t, 0)
		b := newBed(f.dev, f.stream, h)
		d, x, y := b.square(t, 8)
		h.MatMul(f.stream, d.Matrix, x.Matrix, y.Matrix, 0, d.Matrix)
		f.lt.Fail(call, status)
		if err := h.Close(); err == nil || !strings.Contains(err.Error(), call) {
			t.Errorf("Close: %v, want %s", err, call)
		}
		f.lt.Fail("", 0)
	}
}

// An algorithm does not tell its configuration: it is used all the same.
func TestConfigurationUnknown(t *testing.T) {
	f := newFake(t)
	f.lt.Offer(fakelt.Good)
	b := newBed(f.dev, f.stream, f.handle(t, 0))
	d, x, y := b.square(t, 8)
	f.lt.Fail("cublasLtMatmulAlgoConfigGetAttribute", 15)
	b.h.MatMul(f.stream, d.Matrix, x.Matrix, y.Matrix, 0, Matrix{})
	f.lt.Fail("", 0)
	wait(t, f.stream)
	if c := b.h.Choices()[0]; c.Algorithm != "unknown" {
		t.Errorf("choice %+v", c)
	}
}

// Who multiplies zeros has algorithms timed with zeros, and checked with random numbers; the
// choices are not taken for other operands.
func TestTimeWithZeros(t *testing.T) {
	f := newFake(t)
	f.lt.Offer(fakelt.Short, fakelt.Good) // of which the first would be right for zeros
	clears := map[bool]int{}              // the bed clears too
	for _, zeros := range []bool{true, false} {
		b := newBed(f.dev, f.stream, f.handle(t, 0))
		if zeros {
			b.h.TimeWithZeros()
		}
		cleared, searched := f.gpu.Calls("cuMemsetD8Async"), f.lt.Record().Searches
		b.run(t, trialCase{m: 16, n: 8, k: 24, in: dtype.BF16, out: dtype.F32, tb: true})
		clears[zeros] = f.gpu.Calls("cuMemsetD8Async") - cleared
		if f.lt.Record().Searches == searched {
			t.Errorf("zeros %t: the choice was another's", zeros)
		}
		c := b.h.Choices()
		if len(c) != 1 || !strings.HasPrefix(c[0].Algorithm, "id 2 ") || strings.HasSuffix(c[0].Product, " of zeros") != zeros {
			t.Errorf("zeros %t: %+v", zeros, c)
		}
	}
	if clears[true] != clears[false]+1 {
		t.Errorf("memory was cleared %v times", clears)
	}
}

func TestLibraries(t *testing.T) {
	f := newFake(t)
	for name, c := range map[string]struct{ path, want string }{
		"too old":   {fakelt.Build(t, 110902), "is version 11.9.2, gorun works with 11.11 (CUDA 11.8) and later: install "},
		"a driver":  {f.gpu.Path, "has no function cublasLt"},
		"elsewhere": {filepath.Join(t.TempDir(), "nowhere.so"), "GORUN_CUBLASLT_LIB"},
	} {
		t.Setenv(fakelt.Variable, c.path)
		if _, err := New(f.dev, 0); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "cuda:0: ") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A library of a later CUDA than the driver's would not start, so it is not tried.
func TestWantedLibraries(t *testing.T) {
	for major, want := range map[int]string{
		11: "[libcublasLt.so.11]", 12: "[libcublasLt.so.12 libcublasLt.so.11]",
		13: "[libcublasLt.so.13 libcublasLt.so.12 libcublasLt.so.11]", 14: "[libcublasLt.so.13 libcublasLt.so.12 libcublasLt.so.11]",
	} {
		if got := fmt.Sprint(wanted(major).Files); got != want {
			t.Errorf("a driver of CUDA %d: %s, want %s", major, got, want)
		}
	}
}
