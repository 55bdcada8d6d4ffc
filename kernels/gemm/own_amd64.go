package gemm

import "golang.org/x/sys/cpu"

//go:generate go -C ../internal/asm run ./gemm -pkg gemm -out ../../gemm/tile_amd64.s -stubs ../../gemm/tile_amd64.go

// kernels lists what runs on this CPU, the fastest first.
func kernels() []kernel {
	var ks []kernel
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX2 {
		ks = append(ks, kernel{"avx512", 8, 32, tile8x32AVX512, 16, dotsAVX512, transpose8AVX2})
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		ks = append(ks, kernel{"avx2", 6, 16, tile6x16AVX2, 8, dotsAVX2, transpose8AVX2})
	}
	return ks
}
