// What the operations' kernels share: this text stands before each of their .cu files,
// and nothing else is included.
#include "floats.cuh"

// Vec is W elements side by side, read and written by accesses of up to 16 bytes:
// its address must be a multiple of its alignment. In registers it stays as it is
// in memory, in words, so that a load is in flight until an element is needed.
template <class T, int W, bool WORDS = sizeof(T) * W % 4 == 0> struct alignas(sizeof(T) * W < 16 ? sizeof(T) * W : 16) Vec {
    u32 word[sizeof(T) * W / 4];
    __device__ __forceinline__ float operator[](int i) const { return element<T>(word[i * sizeof(T) / 4], i); }
    __device__ __forceinline__ void set(const float (&x)[W]) {
#pragma unroll
        for (int i = 0; i < W; i += 4 / sizeof(T)) {
            if constexpr (sizeof(T) == 4)
                word[i] = __float_as_uint(x[i]);
            else
                word[i / 2] = pair<T>(x[i], x[i + 1]);
        }
    }
};
template <class T> struct Vec<T, 1, false> {
    T at;
    __device__ __forceinline__ float operator[](int) const { return wide(at); }
    __device__ __forceinline__ void set(const float (&x)[1]) { at = narrow<T>(x[0]); }
};

template <int W, class T> __device__ __forceinline__ Vec<T, W> fetch(const T* p) {
    return *reinterpret_cast<const Vec<T, W>*>(p);
}

template <class T, int W> __device__ __forceinline__ void unpack(float (&x)[W], const Vec<T, W>& v) {
#pragma unroll
    for (int i = 0; i < W; i++) x[i] = v[i];
}

// forget makes the compiler drop what it unpacked from v: v itself then stays in
// registers, in half the space, and is unpacked again where it is needed next.
template <class T, int W> __device__ __forceinline__ void forget(Vec<T, W>& v) {
#pragma unroll
    for (int i = 0; i < sizeof(v.word) / 4; i++) asm volatile("" : "+r"(v.word[i]));
}

// read and write move W elements of memory from and to f32 registers.
template <class T, int W> __device__ __forceinline__ void read(float (&x)[W], const T* p) {
    unpack(x, fetch<W>(p));
}
template <class T, int W> __device__ __forceinline__ void write(T* p, const float (&x)[W]) {
    Vec<T, W> v;
    v.set(x);
    *reinterpret_cast<Vec<T, W>*>(p) = v;
}

// each hands out the elements [0, n) in pieces of W, one a thread:
// op.piece<W>(i) does elements i to i+W-1. Where wide is false, for want of
// alignment, and in the last piece they go one by one, as op.piece<1>(i).
template <int W, class Op> __device__ __forceinline__ void each(i64 n, bool wide, const Op& op) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (!wide) {
        if (i < n) op.template piece<1>(i);
        return;
    }
    i *= W;
    if (i + W <= n) {
        op.template piece<W>(i);
        return;
    }
#pragma unroll 1
    for (; i < n; i++) op.template piece<1>(i);
}

// warpSum is the sum over the warp, the same bits in every lane. All 32 lanes call it.
template <class T> __device__ __forceinline__ T warpSum(T x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

// blockSum is the sum over the block, the same bits in every thread; the order
// depends on the size of the block alone. scratch is shared memory of one T a
// warp. All threads of the block call it, whole warps of them. Between two calls
// with one scratch there must be a barrier, such as that of a call with another.
template <class T> __device__ __forceinline__ T blockSum(T x, T* scratch) {
    x = warpSum(x);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    T total = 0;
#pragma unroll 4
    for (u32 w = 0; w < blockDim.x / 32; w++) total += scratch[w];
    return total;
}
