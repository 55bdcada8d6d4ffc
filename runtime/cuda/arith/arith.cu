// Elementwise arithmetic on long arrays. Every kernel reads each byte once and
// writes each once, so all of them run at the speed of the memory. An array is
// taken in chunks of 16 bytes of its widest type, neighbouring threads taking
// neighbouring chunks and a thread going on by the size of the grid; and element
// by element at its end, or all of it where a pointer is not aligned to 16 bytes.

#include "floats.cuh"

typedef float f32;
typedef double f64;

constexpr int threads = 256; // of every block
constexpr u32 warp = 0xffffffff;

__device__ f64 wide(f64 x) { return x; }

// put rounds to nearest, ties to even; an f64 becomes 16 bits by way of f32. In bf16 a
// NaN keeps its bits, as on the host.
__device__ void put(f64 &y, f64 x) { y = x; }
__device__ void put(f32 &y, f32 x) { y = x; }
__device__ void put(f16 &y, f32 x) { y = narrow<f16>(x); }
__device__ void put(bf16 &y, f32 x) {
	u32 bits = __float_as_uint(x);
	y.bits = x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Pair is the launch argument of all kernels that write dst[n] from src[n].
struct Pair {
	void *dst;
	const void *src;
	u64 n;
	u32 chunks; // both are aligned to 16 bytes
};

template <class T, int N> struct alignas(N * sizeof(T)) chunk { T e[N]; };

// map calls f(dst[i], src[i]) for every i. f finds in its first argument what was
// there where it reads it; only then is dst read.
template <class D, class S, bool reads, class F> __device__ void map(const Pair &p, F f) {
	constexpr int N = 16 / (sizeof(D) > sizeof(S) ? sizeof(D) : sizeof(S));
	typedef chunk<D, N> to;
	typedef chunk<S, N> from;
	u64 first = (u64)blockIdx.x * threads + threadIdx.x, step = (u64)gridDim.x * threads;
	u64 chunks = p.chunks ? p.n / N : 0;
	for (u64 c = first; c < chunks; c += step) {
		from s = ((const from *)p.src)[c];
		to d;
		if (reads) d = ((const to *)p.dst)[c];
#pragma unroll
		for (int i = 0; i < N; i++) f(d.e[i], s.e[i]);
		((to *)p.dst)[c] = d;
	}
	for (u64 i = chunks * N + first; i < p.n; i += step) f(((D *)p.dst)[i], ((const S *)p.src)[i]);
}

// convert_D_S: dst = src
template <class D, class S> __device__ void convert(const Pair &p) {
	map<D, S, false>(p, [](D &d, S s) { put(d, wide(s)); });
}

// add_D_S: dst = dst + src, rounded once
template <class D, class S> __device__ void add(const Pair &p) {
	map<D, S, true>(p, [](D &d, S s) { put(d, wide(d) + wide(s)); });
}

// sum_in_warp is the same number in every lane.
__device__ u64 sum_in_warp(u64 x) {
#pragma unroll
	for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(warp, x, lane);
	return x;
}

// region is the launch argument of checksum.
struct region {
	u64 *sum;
	const u8 *p;
	u64 n;
	u32 chunks; // p is aligned to 16 bytes
};

// term is what word i adds to a checksum: see the Go function of that name.
__device__ u64 term(u64 word, u64 i) {
	u64 x = word ^ (i + 1) * 0x9e3779b97f4a7c15;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

// checksum: *sum += n + the terms of all words of 8 bytes, zeros behind the end.
// Integers wrap around, so the order in which the warps come changes nothing.
extern "C" __global__ void checksum(region p) {
	u64 first = (u64)blockIdx.x * threads + threadIdx.x, step = (u64)gridDim.x * threads;
	u64 chunks = p.chunks ? p.n / 16 : 0, words = (p.n + 7) / 8;
	u64 sum = first == 0 ? p.n : 0;
	for (u64 c = first; c < chunks; c += step) {
		chunk<u64, 2> s = ((const chunk<u64, 2> *)p.p)[c];
		sum += term(s.e[0], 2 * c) + term(s.e[1], 2 * c + 1);
	}
	for (u64 i = 2 * chunks + first; i < words; i += step) {
		u64 word = 0;
		for (u64 k = 0; k < 8 && 8 * i + k < p.n; k++) word |= (u64)p.p[8 * i + k] << 8 * k;
		sum += term(word, i);
	}
	sum = sum_in_warp(sum);
	if (threadIdx.x % 32 == 0) atomicAdd(p.sum, sum);
}

#define PAIR(D, S) \
	extern "C" __global__ void convert_##D##_##S(Pair p) { convert<D, S>(p); } \
	extern "C" __global__ void add_##D##_##S(Pair p) { add<D, S>(p); }
#define PAIRS(D) PAIR(D, f32) PAIR(D, f64) PAIR(D, f16) PAIR(D, bf16)

PAIRS(f32) PAIRS(f64) PAIRS(f16) PAIRS(bf16)
