// Sums of up to 8 arrays, element by element, in the order of the arrays: f32 inside,
// rounded once. dst may be one of the arrays. All arrays are aligned to 16 bytes.
typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;

struct Sum {
  void* dst;
  const void* src[8];
  i64 n;
  int ranks;
  float factor;
};

#define DEV static __device__ __forceinline__

struct F32 {
  static constexpr int per = 1;
  DEV float lo(u32 w) { return __uint_as_float(w); }
  DEV float hi(u32) { return 0.f; }
  DEV u32 pack(float lo, float) { return __float_as_uint(lo); }
};

struct BF16 {
  static constexpr int per = 2;
  DEV float lo(u32 w) { return __uint_as_float(w << 16); }
  DEV float hi(u32 w) { return __uint_as_float(w & 0xffff0000u); }
  DEV u32 pack(float lo, float hi) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
  }
};

struct F16 {
  static constexpr int per = 2;
  DEV float half(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
  }
  DEV float lo(u32 w) { return half((u16)w); }
  DEV float hi(u32 w) { return half((u16)(w >> 16)); }
  DEV u32 pack(float lo, float hi) {
    u16 a, b;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(a) : "f"(lo));
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(hi));
    return (u32)a | ((u32)b << 16);
  }
};

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
    for (int k = 0; k < W; k++) lo[k] += T::lo(w[k]), hi[k] += T::hi(w[k]);
  }
  u32 out[W];
#pragma unroll
  for (int k = 0; k < W; k++) out[k] = T::pack(lo[k] * p.factor, hi[k] * p.factor);
  u32* dst = (u32*)p.dst + i;
  if (W == 4)
    *(uint4*)dst = make_uint4(out[0], out[1 % W], out[2 % W], out[3 % W]);
  else
    *dst = out[0];
}

template <class T>
DEV void sum(const Sum& p) {
  const i64 step = (i64)gridDim.x * blockDim.x, first = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  const i64 all = p.n / T::per, quads = all / 4; // whole words
  for (i64 q = first; q < quads; q += step) words<T, 4>(p, q * 4);
  for (i64 i = quads * 4 + first; i < all; i += step) words<T, 1>(p, i);
  if (T::per == 2 && (p.n & 1) && first == 0) { // the last element of 16 bits
    float s = 0.f;
#pragma unroll
    for (int r = 0; r < 8; r++)
      if (r < p.ranks) s += T::lo(((const u16*)p.src[r])[p.n - 1]);
    ((u16*)p.dst)[p.n - 1] = (u16)T::pack(s * p.factor, 0.f);
  }
}

extern "C" __global__ void __launch_bounds__(512) sum_f32(const Sum p) { sum<F32>(p); }
extern "C" __global__ void __launch_bounds__(512) sum_bf16(const Sum p) { sum<BF16>(p); }
extern "C" __global__ void __launch_bounds__(512) sum_f16(const Sum p) { sum<F16>(p); }
