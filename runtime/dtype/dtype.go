// Package dtype names the element types that travel between ranks, lie in
// parameters and stand in files, and converts the 16-bit ones.
package dtype

import "fmt"

// DType is an element type. The values are part of the wire format of comm and
// of checkpoints: append, never renumber.
type DType uint8

const (
	Invalid DType = iota
	F32
	F64
	F16
	BF16
	I32
	I64
	U8
)

var table = [...]struct {
	name string
	size int
}{
	Invalid: {"invalid", 0},
	F32:     {"f32", 4},
	F64:     {"f64", 8},
	F16:     {"f16", 2},
	BF16:    {"bf16", 2},
	I32:     {"i32", 4},
	I64:     {"i64", 8},
	U8:      {"u8", 1},
}

// All lists the valid types.
var All = []DType{F32, F64, F16, BF16, I32, I64, U8}

// Size is the number of bytes of one element, 0 for Invalid and unknown values.
func (d DType) Size() int {
	if int(d) >= len(table) {
		return 0
	}
	return table[d].size
}

// String is the name that Parse reads.
func (d DType) String() string {
	if int(d) >= len(table) {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return table[d].name
}

// Float reports whether d is a floating-point type.
func (d DType) Float() bool { return d == F32 || d == F64 || d == F16 || d == BF16 }

// Parse returns the type with the given name. The long spellings of other tools
// (float32, bfloat16, int64, uint8, half, ...) are understood too.
func Parse(name string) (DType, error) {
	if d, ok := aliases[name]; ok {
		return d, nil
	}
	for d, t := range table {
		if d != 0 && t.name == name {
			return DType(d), nil
		}
	}
	return Invalid, fmt.Errorf("unknown element type %q: want one of f32, f64, f16, bf16, i32, i64, u8", name)
}

var aliases = map[string]DType{
	"float": F32, "float32": F32, "fp32": F32,
	"double": F64, "float64": F64, "fp64": F64,
	"half": F16, "float16": F16, "fp16": F16,
	"bfloat16": BF16,
	"int32":    I32, "int": I32,
	"int64": I64, "long": I64,
	"uint8": U8, "byte": U8,
}
