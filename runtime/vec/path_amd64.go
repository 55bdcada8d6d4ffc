package vec

import (
	"golang.org/x/sys/cpu"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

//go:generate go run -C gen . -out ../kernels_amd64.s -stubs ../kernels_amd64.go -pkg vec

func simdPaths() []*path {
	var paths []*path
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C {
		paths = append(paths, avx2())
		if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ {
			paths = append(paths, avx512())
		}
	}
	return paths
}

func avx2() *path {
	p := &path{name: "avx2", sumBoth: sumBothF32AVX2, scale: scaleF32AVX2, divide: divideF32AVX2, squares: squaresF32AVX2}
	p.binary[dtype.F32] = row{Sum: sumF32AVX2, Min: minF32AVX2, Max: maxF32AVX2, Prod: prodF32AVX2}
	p.binary[dtype.F64] = row{Sum: sumF64AVX2, Min: minF64AVX2, Max: maxF64AVX2, Prod: prodF64AVX2}
	p.binary[dtype.I32] = row{Sum: sumI32AVX2, Min: minI32AVX2, Max: maxI32AVX2, Prod: prodI32AVX2}
	p.binary[dtype.I64] = row{Sum: sumI64AVX2}
	p.binary[dtype.U8] = row{Sum: sumU8AVX2, Min: minU8AVX2, Max: maxU8AVX2}
	p.many[dtype.F32], p.many[dtype.F64] = sumManyF32AVX2, sumManyF64AVX2
	p.many[dtype.I32], p.many[dtype.I64], p.many[dtype.U8] = sumManyI32AVX2, sumManyI64AVX2, sumManyU8AVX2
	p.binary[dtype.BF16], p.binary[dtype.F16] = row{Sum: sumBF16AVX2}, row{Sum: sumF16AVX2}
	p.widen[dtype.BF16], p.narrow[dtype.BF16] = widenBF16AVX2, narrowBF16AVX2
	p.widen[dtype.F16], p.narrow[dtype.F16] = widenF16AVX2, narrowF16AVX2
	return p
}

func avx512() *path {
	p := &path{name: "avx512", sumBoth: sumBothF32AVX512, scale: scaleF32AVX512, divide: divideF32AVX512, squares: squaresF32AVX512}
	p.binary[dtype.F32] = row{Sum: sumF32AVX512, Min: minF32AVX512, Max: maxF32AVX512, Prod: prodF32AVX512}
	p.binary[dtype.F64] = row{Sum: sumF64AVX512, Min: minF64AVX512, Max: maxF64AVX512, Prod: prodF64AVX512}
	p.binary[dtype.I32] = row{Sum: sumI32AVX512, Min: minI32AVX512, Max: maxI32AVX512, Prod: prodI32AVX512}
	p.binary[dtype.I64] = row{Sum: sumI64AVX512, Min: minI64AVX512, Max: maxI64AVX512, Prod: prodI64AVX512}
	p.binary[dtype.U8] = row{Sum: sumU8AVX512, Min: minU8AVX512, Max: maxU8AVX512}
	p.many[dtype.F32], p.many[dtype.F64] = sumManyF32AVX512, sumManyF64AVX512
	p.many[dtype.I32], p.many[dtype.I64], p.many[dtype.U8] = sumManyI32AVX512, sumManyI64AVX512, sumManyU8AVX512
	p.binary[dtype.BF16], p.binary[dtype.F16] = row{Sum: sumBF16AVX512}, row{Sum: sumF16AVX512}
	p.widen[dtype.BF16], p.narrow[dtype.BF16] = widenBF16AVX512, narrowBF16AVX512
	p.widen[dtype.F16], p.narrow[dtype.F16] = widenF16AVX512, narrowF16AVX512
	return p
}
