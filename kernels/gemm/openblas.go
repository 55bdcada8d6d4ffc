//go:build linux && (amd64 || arm64)

package gemm

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// openblas is OpenBLAS, found at run time. The library is told to stay on the
// calling thread, for the whole process: work is split by our own workers, and
// attention multiplies from several of them at once. Its kernels differ by the
// size of the matrices, so bits may depend on how callers split their work, but
// not on anything else.
type openblas struct {
	sgemm uintptr
	name  string
}

// openOpenBLAS opens the library once for the process.
var openOpenBLAS = sync.OnceValues(func() (Backend, error) {
	lib, err := purego.Dlopen(openblasFile, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("gemm: OpenBLAS: %w (install libopenblas0-pthread)", err)
	}
	var missing error
	symbol := func(name string) uintptr {
		p, err := purego.Dlsym(lib, name)
		if err != nil && missing == nil {
			missing = fmt.Errorf("gemm: OpenBLAS: %s lacks %s: %w", openblasFile, name, err)
		}
		return p
	}
	sgemm, threads := symbol("sgemm_"), symbol("openblas_set_num_threads")
	config, core := symbol("openblas_get_config"), symbol("openblas_get_corename")
	if missing != nil {
		return nil, missing
	}
	// Integers of 64 bits would be another calling convention for sgemm_.
	text := cString(config)
	if strings.Contains(text, "USE64BITINT") {
		return nil, fmt.Errorf("gemm: OpenBLAS: %s is built for 64-bit integers (%s)", openblasFile, text)
	}
	purego.SyscallN(threads, 1)
	version := strings.TrimPrefix(text, "OpenBLAS ")
	version, _, _ = strings.Cut(version, " ")
	return &openblas{sgemm, fmt.Sprintf("openblas %s %s", version, cString(core))}, nil
})

// cString calls f, which returns a constant C string.
func cString(f uintptr) string {
	p, _, _ := purego.SyscallN(f)
	var s []byte
	for i := 0; i < 1<<10 && p != 0; i++ {
		// p is C memory, which the garbage collector does not move.
		c := *(*byte)(unsafe.Add(*(*unsafe.Pointer)(unsafe.Pointer(&p)), i))
		if c == 0 {
			break
		}
		s = append(s, c)
	}
	return string(s)
}

func (o *openblas) Name() string { return o.name }

// call holds what sgemm_, a Fortran function, takes by address.
type call struct {
	ta, tb        [1]byte
	m, n, k       int32
	lda, ldb, ldc int32
	alpha, beta   float32
}

var calls = sync.Pool{New: func() any { return new(call) }}

func (o *openblas) Gemm(ta, tb bool, m, n, k int, a []float32, lda int, b []float32, ldb int, add bool, c []float32, ldc int) {
	if trivial(m, n, k, add, c, ldc) {
		return
	}
	checkBounds(ta, tb, m, n, k, a, lda, b, ldb, c, ldc)
	if max(m, n, k, lda, ldb, ldc) > math.MaxInt32 {
		panic(fmt.Sprintf("gemm: a product of %d x %d x %d is beyond OpenBLAS's 32-bit sizes", m, n, k))
	}
	p := calls.Get().(*call)
	*p = call{letter(ta), letter(tb), int32(m), int32(n), int32(k), int32(lda), int32(ldb), int32(ldc), 1, 0}
	if add {
		p.beta = 1
	}
	// Fortran is column-major: it sees the transposes, and cᵀ = op(b)ᵀ·op(a)ᵀ.
	// The last two arguments are the lengths of the two strings.
	purego.SyscallN(o.sgemm,
		uintptr(unsafe.Pointer(&p.tb)), uintptr(unsafe.Pointer(&p.ta)),
		uintptr(unsafe.Pointer(&p.n)), uintptr(unsafe.Pointer(&p.m)), uintptr(unsafe.Pointer(&p.k)),
		uintptr(unsafe.Pointer(&p.alpha)),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&p.ldb)),
		uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&p.lda)),
		uintptr(unsafe.Pointer(&p.beta)),
		uintptr(unsafe.Pointer(&c[0])), uintptr(unsafe.Pointer(&p.ldc)),
		1, 1)
	calls.Put(p)
}

func letter(trans bool) [1]byte {
	if trans {
		return [1]byte{'T'}
	}
	return [1]byte{'N'}
}
