package commtest

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// value is what rank r has at element i: small integers, so that sums over ten
// ranks are exact in every type, and their order does not matter.
func value(op comm.Op, r, i int) float64 {
	if op == comm.Prod {
		return float64(1 + (r+i)%2)
	}
	return float64((7*i + 3*r) % 11)
}

// reduced is what op makes of element i over n ranks, in type dt.
func reduced(op comm.Op, dt dtype.DType, n, i int) float64 {
	acc := value(op, 0, i)
	for r := 1; r < n; r++ {
		v := value(op, r, i)
		switch op {
		case comm.Sum, comm.Avg:
			acc += v
		case comm.Min:
			acc = min(acc, v)
		case comm.Max:
			acc = max(acc, v)
		case comm.Prod:
			acc *= v
		}
	}
	switch {
	case op != comm.Avg:
		return acc
	case dt == dtype.F64:
		return acc / float64(n)
	case dt.Float():
		return float64(float32(acc) / float32(n))
	}
	return math.Trunc(acc / float64(n))
}

// period is that of value in i, for every operation.
const period = 22

// encode lays n values out as elements of dt; at has the period above.
func encode(dt dtype.DType, n int, at func(i int) float64) []byte {
	b := make([]byte, 0, n*dt.Size())
	le := binary.LittleEndian
	for i := range min(n, period) {
		switch v := at(i); dt {
		case dtype.F32:
			b = le.AppendUint32(b, math.Float32bits(float32(v)))
		case dtype.F64:
			b = le.AppendUint64(b, math.Float64bits(v))
		case dtype.F16:
			b = le.AppendUint16(b, dtype.F16From(float32(v)))
		case dtype.BF16:
			b = le.AppendUint16(b, dtype.BF16From(float32(v)))
		case dtype.I32:
			b = le.AppendUint32(b, uint32(int32(v)))
		case dtype.I64:
			b = le.AppendUint64(b, uint64(int64(v)))
		case dtype.U8:
			b = append(b, uint8(v))
		default:
			panic(fmt.Sprintf("commtest: no values of type %s", dt))
		}
	}
	for len(b) > 0 && len(b) < n*dt.Size() {
		b = append(b, b[:min(len(b), n*dt.Size()-len(b))]...)
	}
	return b
}

// differ says where two arrays of dt differ first.
func differ(dt dtype.DType, got, want []byte) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d bytes, want %d", len(got), len(want))
	}
	if string(got) == string(want) {
		return nil
	}
	for i := 0; i < len(want); i += dt.Size() {
		if g, w := got[i:i+dt.Size()], want[i:i+dt.Size()]; string(g) != string(w) {
			return fmt.Errorf("element %d of %d is %x, want %x (%s, little-endian)", i/dt.Size(), len(want)/dt.Size(), g, w, dt)
		}
	}
	return nil
}
