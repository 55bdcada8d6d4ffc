// Sums of up to 8 arrays, element by element, in the order of the arrays: f32 inside,
// rounded once. dst may be one of the arrays. All arrays are aligned to 16 bytes.
#include "floats.cuh"

struct Sum {
  void* dst;
  const void* src[8];
  i64 n;
  int ranks;
  float factor;
};

#define DEV static __device__ __forceinline__

// word is a word of memory: lo, an f32, or two elements of 16 bits, rounded.
template <class T>
DEV u32 word(float lo, float hi) {
  if constexpr (sizeof(T) == 4)
    return __float_as_uint(lo);
  else
    return pair<T>(lo, hi);
}

// words sums W words of each array at word i.
template <class T, int W>
DEV void words(const Sum& p, i64 i) {
  float lo[W], hi[W];
#pragma unroll
  for (int k = 0; k < W; k++) lo[k] = hi[k] = 0.f;
#pragma unroll
  for (int r = 0; r < 8; r++) { // a constant index keeps the parameters out of local memory
    if (r >= p.ranks) break;
    u32 w[W];
    const u32* src = (const u32*)p.src[r] + i;
    if (W == 4) {
      const uint4 v = *(const uint4*)src;
      w[0] = v.x, w[1 % W] = v.y, w[2 % W] = v.z, w[3 % W] = v.w;
    } else {
      w[0] = *src;
    }
#pragma unroll
    for (int k = 0; k < W; k++) lo[k] += element<T>(w[k], 0), hi[k] += element<T>(w[k], 1);
  }
  u32 out[W];
#pragma unroll
  for (int k = 0; k < W; k++) out[k] = word<T>(lo[k] * p.factor, hi[k] * p.factor);
  u32* dst = (u32*)p.dst + i;
  if (W == 4)
    *(uint4*)dst = make_uint4(out[0], out[1 % W], out[2 % W], out[3 % W]);
  else
    *dst = out[0];
}

template <class T>
DEV void sum(const Sum& p) {
  const i64 step = (i64)gridDim.x * blockDim.x, first = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  constexpr int per = 4 / sizeof(T);
  const i64 all = p.n / per, quads = all / 4; // whole words
  for (i64 q = first; q < quads; q += step) words<T, 4>(p, q * 4);
  for (i64 i = quads * 4 + first; i < all; i += step) words<T, 1>(p, i);
  if (per == 2 && (p.n & 1) && first == 0) { // the last element of 16 bits
    float s = 0.f;
#pragma unroll
    for (int r = 0; r < 8; r++)
      if (r < p.ranks) s += wide(((const T*)p.src[r])[p.n - 1]);
    ((T*)p.dst)[p.n - 1] = narrow<T>(s * p.factor);
  }
}

extern "C" __global__ void __launch_bounds__(512) sum_f32(const Sum p) { sum<float>(p); }
extern "C" __global__ void __launch_bounds__(512) sum_bf16(const Sum p) { sum<bf16>(p); }
extern "C" __global__ void __launch_bounds__(512) sum_f16(const Sum p) { sum<f16>(p); }
