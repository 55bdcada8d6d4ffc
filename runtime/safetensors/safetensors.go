// Package safetensors reads and writes the tensor files of the Hugging Face
// ecosystem: a length, a JSON header, then the tensors' bytes without gaps.
//
//	u64 little-endian n | n bytes of JSON, starting with '{' | data
//	{"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}}
//
// Offsets count from the start of the data. Tensors are little-endian and row-major,
// cover the data exactly, and may have no dimensions or no elements. A file that
// breaks any of this is refused, with the reason.
package safetensors

import (
	"fmt"
	"math/bits"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

const (
	maxHeader   = 100_000_000
	metadataKey = "__metadata__"
)

// Info describes a tensor in a file.
type Info struct {
	Name string
	// Type is the element type as the file spells it, such as "BF16" or "F8_E4M3".
	Type string
	// DType is Type where this project has that type, else dtype.Invalid.
	DType dtype.DType
	Shape []int
	// Offsets are the first byte and the one past the last, from the start of the
	// data of the file that holds the tensor.
	Offsets [2]int64
}

// Bytes is the size of the tensor's data.
func (i Info) Bytes() int64 { return i.Offsets[1] - i.Offsets[0] }

// kinds are the element types of the format in its own order, by which a writer
// sorts. Several are narrower than a byte.
var kinds = []kind{
	{"BOOL", 8, dtype.Invalid},
	{"F4", 4, dtype.Invalid},
	{"F6_E2M3", 6, dtype.Invalid},
	{"F6_E3M2", 6, dtype.Invalid},
	{"U8", 8, dtype.U8},
	{"I8", 8, dtype.Invalid},
	{"F8_E5M2", 8, dtype.Invalid},
	{"F8_E4M3", 8, dtype.Invalid},
	{"F8_E8M0", 8, dtype.Invalid},
	{"F8_E4M3FNUZ", 8, dtype.Invalid},
	{"F8_E5M2FNUZ", 8, dtype.Invalid},
	{"I16", 16, dtype.Invalid},
	{"U16", 16, dtype.Invalid},
	{"F16", 16, dtype.F16},
	{"BF16", 16, dtype.BF16},
	{"I32", 32, dtype.I32},
	{"U32", 32, dtype.Invalid},
	{"F32", 32, dtype.F32},
	{"C64", 64, dtype.Invalid},
	{"F64", 64, dtype.F64},
	{"I64", 64, dtype.I64},
	{"U64", 64, dtype.Invalid},
}

type kind struct {
	name  string
	bits  uint64
	dtype dtype.DType
}

func kindNamed(name string) (rank int, ok bool) {
	for i, k := range kinds {
		if k.name == name {
			return i, true
		}
	}
	return 0, false
}

func kindOf(d dtype.DType) (rank int, ok bool) {
	for i, k := range kinds {
		if d != dtype.Invalid && k.dtype == d {
			return i, true
		}
	}
	return 0, false
}

// size is the number of bytes of a tensor, refused where it overflows or ends
// within a byte.
func (k kind) size(shape []int) (int64, error) {
	n := uint64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %v has a negative dimension", shape)
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 {
			return 0, fmt.Errorf("shape %v overflows 64 bits", shape)
		}
		n = lo
	}
	hi, n := bits.Mul64(n, k.bits)
	if hi != 0 {
		return 0, fmt.Errorf("shape %v of %s overflows 64 bits", shape, k.name)
	}
	if n%8 != 0 {
		return 0, fmt.Errorf("shape %v of %s is no whole number of bytes", shape, k.name)
	}
	return int64(n / 8), nil
}
