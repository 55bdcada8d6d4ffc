package vec

import (
	"fmt"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

// BenchmarkKernels prints GB/s, counting bytes read and written, for arrays in the
// first-level cache and in memory.
func BenchmarkKernels(b *testing.B) {
	for _, n := range []int{4 << 10, 8 << 20} { // elements
		x, y, d := at(dtype.F32, n, 0), at(dtype.F32, n, 0), at(dtype.F32, n, 0)
		var eight [][]byte
		for range 8 {
			eight = append(eight, at(dtype.F32, n, 0))
		}
		wide := view[float32](d)
		work := []struct {
			name  string
			bytes int // of an element
			do    func()
		}{
			{"add", 12, func() { Reduce(dtype.F32, Sum, d, x, y) }},
			{"addto", 12, func() { Reduce(dtype.F32, Sum, d, d, x) }},
			{"both", 16, func() { ReduceMany(dtype.F32, Sum, [][]byte{x, y}, [][]byte{x, y}) }},
			{"four", 32, func() { ReduceMany(dtype.F32, Sum, [][]byte{x, y, d, x}, [][]byte{x, y, d, x}) }},
			{"eight", 64, func() { ReduceMany(dtype.F32, Sum, eight, eight) }},
			{"max", 12, func() { Reduce(dtype.F32, Max, d, x, y) }},
			{"avg3", 16, func() { ReduceMany(dtype.F32, Avg, [][]byte{d}, [][]byte{x, y, d}) }},
			{"bf16add", 6, func() { Reduce(dtype.BF16, Sum, d[:2*n], x[:2*n], y[:2*n]) }},
			{"f16add", 6, func() { Reduce(dtype.F16, Sum, d[:2*n], x[:2*n], y[:2*n]) }},
			{"bf16acc", 10, func() { Accumulate(dtype.BF16, wide, x[:2*n]) }},
			{"bf16narrow", 6, func() { Narrow(dtype.BF16, x[:2*n], wide) }},
			{"scale", 8, func() { Scale(dtype.F32, x, 0.5) }},
			{"squares", 4, func() { SumSquares(dtype.F32, x) }},
			{"copy", 8, func() { copy(d, x) }},
		}
		eachPath(b, func(path string) {
			for _, w := range work {
				b.Run(fmt.Sprintf("%s/%s/%dKB", w.name, path, 4*n>>10), func(b *testing.B) {
					b.SetBytes(int64(w.bytes * n))
					for b.Loop() {
						w.do()
					}
				})
			}
		})
	}
}
