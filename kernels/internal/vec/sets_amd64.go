package vec

import "golang.org/x/sys/cpu"

//go:generate go -C ../asm run ./vec -pkg vec -out ../vec/vec_amd64.s -stubs ../vec/vec_amd64.go

// sets lists what runs on this CPU, the fastest first.
func sets() []*set {
	var list []*set
	if cpu.X86.HasAVX512F && cpu.X86.HasBMI2 {
		list = append(list, &set{"avx512", expSumAVX512, softmaxGradAVX512, swigluAVX512, swigluGradAVX512,
			geluAVX512, geluGradAVX512, maxAVX512, dotAVX512, sumAVX512, addColumnsAVX512, addProductsAVX512})
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		list = append(list, &set{"avx2", expSumAVX2, softmaxGradAVX2, swigluAVX2, swigluGradAVX2,
			geluAVX2, geluGradAVX2, maxAVX2, dotAVX2, sumAVX2, addColumnsAVX2, addProductsAVX2})
	}
	return append(list, plain)
}
