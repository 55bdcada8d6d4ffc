package cublaslt

import (
	"testing"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/dl"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// The real library's descriptors need no GPU: what it reads from ours is what we
// meant, for it names attributes by numbers and knows their sizes.
func TestDescriptorsOfTheRealLibrary(t *testing.T) {
	spec := wanted(13)
	lib, err := load(spec)
	if err != nil {
		testenv.Skip(t, "cublaslt", err.Error())
	}
	t.Logf("cuBLASLt %s, %s", cuda.LibraryVersion(lib.version), lib.path)
	file, err := dl.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	get := func(call string, object, attribute uintptr, size int) int64 {
		t.Helper()
		p, err := file.Proc(call)
		if err != nil {
			t.Fatal(err)
		}
		var value int64
		var written uint64
		result := p.Call(object, attribute, uintptr(unsafe.Pointer(&value)), uintptr(size), uintptr(unsafe.Pointer(&written)))
		if err := lib.failed(call, result); err != nil {
			t.Error(err)
		}
		if int(written) != size {
			t.Errorf("%s(%d): %d bytes, want %d", call, attribute, written, size)
		}
		return value
	}

	h := &Handle{lib: lib, workspace: 12345}
	a := Matrix{Addr: 0x1002, DType: dtype.BF16, Rows: 6, Cols: 4, Stride: 5}
	b := Matrix{Addr: 0x2010, DType: dtype.BF16, Rows: 10, Cols: 4, Stride: 6, Trans: true}
	c := Matrix{Addr: 0x3004, DType: dtype.F32, Rows: 6, Cols: 10, Stride: 14}
	d := Matrix{Addr: 0x4008, DType: dtype.F32, Rows: 6, Cols: 10, Stride: 13}
	p, err := h.newPlan(newProduct(d, a, b, 0x7ff0, c), 0x7ff0)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		attribute uintptr
		size      int
		want      int64
	}{
		"compute type": {0, 4, 68}, "scale type": {1, 4, 0}, "transa": {descTransA, 4, 1}, "transb": {descTransB, 4, 0},
		"epilogue": {descEpilogue, 4, 4}, "bias": {descBiasPointer, 8, 0x7ff0},
	} {
		if got := get("cublasLtMatmulDescGetAttribute", p.desc, x.attribute, x.size); got != x.want {
			t.Errorf("%s is %d, want %d", name, got, x.want)
		}
	}
	// cublasLtMatrixLayoutAttribute_t: type, order, rows, columns, leading dimension.
	for name, x := range map[string]struct {
		layout uintptr
		want   [5]int64
	}{"A": {p.b, [5]int64{14, 0, 4, 10, 6}}, "B": {p.a, [5]int64{14, 0, 4, 6, 5}}, "C": {p.c, [5]int64{0, 0, 10, 6, 14}}, "D": {p.d, [5]int64{0, 0, 10, 6, 13}}} {
		for i, size := range []int{4, 4, 8, 8, 8} {
			if got := get("cublasLtMatrixLayoutGetAttribute", x.layout, uintptr(i), size); got != x.want[i] {
				t.Errorf("attribute %d of %s is %d, want %d", i, name, got, x.want[i])
			}
		}
	}
	pref, err := h.preference(p)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		attribute uintptr
		size      int
		want      int64
	}{
		"workspace": {prefMaxWorkspace, 8, 12345}, "reductions": {prefReductions, 4, 2},
		"alignment of A": {prefAlignA, 4, 16}, "of B": {prefAlignB, 4, 2}, "of C": {prefAlignC, 4, 4}, "of D": {prefAlignD, 4, 8},
	} {
		if got := get("cublasLtMatmulPreferenceGetAttribute", pref, x.attribute, x.size); got != x.want {
			t.Errorf("%s is %d, want %d", name, got, x.want)
		}
	}
	if err := h.forget(pref); err != nil {
		t.Error(err)
	}
	if err := h.release(p); err != nil {
		t.Error(err)
	}
	// A fault has a text.
	if err := lib.failed("cublasLtMatmul", 15); err == nil ||
		err.Error() != "cublasLtMatmul: the requested functionality is not supported (CUBLAS_STATUS_NOT_SUPPORTED, status 15)" {
		t.Error(err)
	}
}
