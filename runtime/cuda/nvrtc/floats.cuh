// Numbers as memory holds them. Every kernel of the project may include this file: the
// package gives it to the compiler.
//
// An element in memory is float, bf16 or f16; all arithmetic is in f32 or f64.
// Offsets into tensors are i64, for tensors pass 2^31 elements.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

struct bf16 { u16 bits; };
struct f16 { u16 bits; };

// wide is the value of an element, exactly.
__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float wide(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float wide(f16 x) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));
    return f;
}

// narrow<T> rounds to the nearest T, ties to even; NaN stays NaN.
template <class T> __device__ __forceinline__ T narrow(float x);
template <> __device__ __forceinline__ float narrow<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 narrow<bf16>(float x) {
    bf16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
    return h;
}
template <> __device__ __forceinline__ f16 narrow<f16>(float x) {
    f16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
    return h;
}

// element is the value of element i among those in words of memory, one of which
// is w; pair rounds two values into a word, the first into its low half.
template <class T> __device__ __forceinline__ float element(u32 w, int i);
template <> __device__ __forceinline__ float element<float>(u32 w, int) { return __uint_as_float(w); }
template <> __device__ __forceinline__ float element<bf16>(u32 w, int i) {
    return __uint_as_float(i % 2 ? w & 0xffff0000u : w << 16);
}
template <> __device__ __forceinline__ float element<f16>(u32 w, int i) { return wide(f16{(u16)(w >> i % 2 * 16)}); }

template <class T> __device__ __forceinline__ u32 pair(float first, float second);
template <> __device__ __forceinline__ u32 pair<bf16>(float first, float second) {
    u32 w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(second), "f"(first));
    return w;
}
template <> __device__ __forceinline__ u32 pair<f16>(float first, float second) {
    u32 w;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(second), "f"(first));
    return w;
}
