package cublaslt

import (
	"fmt"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/dl"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// The numbers below stand in the public headers cublasLt.h, cublas_api.h and
// library_types.h, with the same values from cuBLAS 11.11 to 13.1.
const (
	compute32F = 68 // CUBLAS_COMPUTE_32F

	// cublasLtMatmulDescAttributes_t
	descTransA      = 3 // int32
	descTransB      = 4 // int32
	descEpilogue    = 7 // uint32
	descBiasPointer = 8 // pointer

	epilogueBias = 4 // CUBLASLT_EPILOGUE_BIAS

	// cublasLtMatmulPreferenceAttributes_t
	prefMaxWorkspace = 1 // uint64
	prefReductions   = 3 // uint32, a mask
	prefAlignA       = 5 // uint32
	prefAlignB       = 6 // uint32
	prefAlignC       = 7 // uint32
	prefAlignD       = 8 // uint32

	// cublasLtReductionScheme_t: what may become of the parts of a sum that was
	// split. Partial sums in f32 in the workspace, added up in a separate step, keep
	// both the precision and the order. In place, or in the output's type, they do not.
	reduceInF32 = 2

	// cublasLtMatmulAlgoConfigAttributes_t
	configID        = 0 // int32
	configTile      = 1 // uint32
	configSplit     = 2 // int32
	configReduction = 3 // uint32
	configSwizzle   = 4 // uint32
	configCustom    = 5 // uint32
	configStages    = 6 // uint32
	configInner     = 7 // uint16
	configCluster   = 8 // uint16
)

// cudaTypes are cudaDataType_t's CUDA_R_32F, CUDA_R_16F and CUDA_R_16BF.
var cudaTypes = map[dtype.DType]int32{dtype.F32: 0, dtype.F16: 2, dtype.BF16: 14}

// algorithm is cublasLtMatmulAlgo_t: opaque, the same for every call of one version
// of the library on one kind of GPU, and so worth keeping.
type algorithm [8]uint64

// candidate is cublasLtMatmulHeuristicResult_t.
type candidate struct {
	algo      algorithm
	workspace uint64
	state     int32
	waves     float32
	_         [4]int32
}

// oldest is the version of CUDA 11.8, the first with kernels for sm_90.
const oldest = 111100

// wanted says where cuBLASLt may lie. major is the driver's CUDA version: a library
// of a later one would not start.
func wanted(major int) dl.Spec {
	s := dl.Spec{
		Name:    "cuBLASLt",
		Env:     "GORUN_CUBLASLT_LIB",
		Folders: []string{"nvidia/cu13/lib", "nvidia/cublas/lib"},
		Gives:   "matrix products on NVIDIA GPUs",
		Install: fmt.Sprintf("the CUDA toolkit's cuBLAS (the package libcublas-%d-0) or pip's wheel nvidia-cublas", major),
	}
	if major < 13 {
		s.Install = fmt.Sprintf("the CUDA toolkit's cuBLAS (the package libcublas-%d-8) or pip's wheel nvidia-cublas-cu%d", major, major)
	}
	for v := min(major, 13); v >= 11; v-- {
		s.Files = append(s.Files, fmt.Sprintf("libcublasLt.so.%d", v))
	}
	return s
}

// library is the functions of an open cuBLASLt.
type library struct {
	path    string
	version int // 130100 is 13.1.0

	getVersion, statusName, statusString dl.Proc
	create, destroy                      dl.Proc
	descCreate, descDestroy, descSet     dl.Proc
	layoutCreate, layoutDestroy          dl.Proc
	prefCreate, prefDestroy, prefSet     dl.Proc
	heuristic, check, config             dl.Proc
	matmul                               dl.Proc
}

func load(spec dl.Spec) (*library, error) {
	file, err := dl.Open(spec)
	if err != nil {
		return nil, err
	}
	l := &library{path: file.Path}
	for name, proc := range map[string]*dl.Proc{
		"cublasLtGetVersion":                   &l.getVersion,
		"cublasLtGetStatusName":                &l.statusName,
		"cublasLtGetStatusString":              &l.statusString,
		"cublasLtCreate":                       &l.create,
		"cublasLtDestroy":                      &l.destroy,
		"cublasLtMatmulDescCreate":             &l.descCreate,
		"cublasLtMatmulDescDestroy":            &l.descDestroy,
		"cublasLtMatmulDescSetAttribute":       &l.descSet,
		"cublasLtMatrixLayoutCreate":           &l.layoutCreate,
		"cublasLtMatrixLayoutDestroy":          &l.layoutDestroy,
		"cublasLtMatmulPreferenceCreate":       &l.prefCreate,
		"cublasLtMatmulPreferenceDestroy":      &l.prefDestroy,
		"cublasLtMatmulPreferenceSetAttribute": &l.prefSet,
		"cublasLtMatmulAlgoGetHeuristic":       &l.heuristic,
		"cublasLtMatmulAlgoCheck":              &l.check,
		"cublasLtMatmulAlgoConfigGetAttribute": &l.config,
		"cublasLtMatmul":                       &l.matmul,
	} {
		if *proc, err = file.Proc(name); err != nil {
			return nil, fmt.Errorf("%w; gorun works with cuBLAS 11.11 (CUDA 11.8) and later: install %s", err, spec.Install)
		}
	}
	l.version = int(l.getVersion.Call())
	if l.version < oldest {
		return nil, fmt.Errorf("cuBLASLt: %s is version %s, gorun works with 11.11 (CUDA 11.8) and later: install %s",
			l.path, cuda.LibraryVersion(l.version), spec.Install)
	}
	return l, nil
}

// statusError is a call that failed.
type statusError struct {
	call   string
	status int32
	name   string // "CUBLAS_STATUS_NOT_SUPPORTED"
	text   string // what the library says of it
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s: %s (%s, status %d)", e.call, e.text, e.name, e.status)
}

// failed is the error of a call with the given result; nil where it succeeded.
func (l *library) failed(call string, result uintptr) error {
	status := int32(result)
	if status == 0 {
		return nil
	}
	return &statusError{call, status,
		dl.GoString(l.statusName.Call(uintptr(status))), dl.GoString(l.statusString.Call(uintptr(status)))}
}

// configOf reads one number of an algorithm's configuration; ok is false where
// this version does not tell.
func (l *library) configOf(a *algorithm, attribute uintptr) (value uint64, ok bool) {
	size := uintptr(4)
	if attribute == configInner || attribute == configCluster {
		size = 2
	}
	var written uint64
	result := l.config.Call(uintptr(unsafe.Pointer(a)), attribute, uintptr(unsafe.Pointer(&value)), size, uintptr(unsafe.Pointer(&written)))
	return value, int32(result) == 0
}

// describe is an algorithm in words, for the log and the checkpoint.
func (l *library) describe(a *algorithm) string {
	text := ""
	for _, c := range []struct {
		name      string
		attribute uintptr
	}{{"id", configID}, {"tile", configTile}, {"stages", configStages}, {"split", configSplit}, {"reduction", configReduction},
		{"swizzle", configSwizzle}, {"custom", configCustom}, {"inner", configInner}, {"cluster", configCluster}} {
		if v, ok := l.configOf(a, c.attribute); ok {
			text += fmt.Sprintf(" %s %d", c.name, v)
		}
	}
	if text == "" {
		return "unknown"
	}
	return text[1:]
}
