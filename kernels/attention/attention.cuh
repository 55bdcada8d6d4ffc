// Causal grouped-query attention: what all its kernels share.
//
// bf16 in and out, f32 sums, no atomics: every result has the same bits in every run.
// q, k and v are views of one packed qkv[B,T,H+2K,HD]: element (b,t,h,d) of q lies at
// q + b*sb + t*st + h*HD + d, and k and v are q moved on by H and H+K heads. dq, dk and
// dv lie in dqkv alike. o and dO are [B,T,H,HD] with the strides osb and ost; lse (the
// natural logarithm) and delta are [B,H,T]. docs[B,T] is the first position of each
// token's document: nondecreasing in t, at most t. Rows start on 16 bytes.
//
// The host sets at compile time (native.go has the table):
//   HD    the head size, a multiple of 8 up to 128
//   DOCS  1 where documents bound attention, else 0
// and the sizes that a kernel's file names.

#define DEV __device__ __forceinline__

// Tiles in shared memory are D columns wide: heads of other sizes are filled up with
// zeros, which add nothing to any product, and their columns are not stored.
constexpr int D = HD <= 64 ? 64 : 128;
static_assert(HD % 8 == 0 && HD >= 8 && HD <= 128, "head size");

#define LOG2E 1.4426950408889634f

// Binary orders by which a score must outgrow a row's running maximum before the row is
// rescaled. Larger values save rescaling, but then the largest probability of a peaked
// row is not exactly 1, and o, dk and dv lose accuracy (8: dk errs by 13 % more).
#ifndef RAISE_LOG2
#define RAISE_LOG2 1.f
#endif

struct Forward {
  const bf16 *q, *k, *v;
  bf16* o;
  float* lse;
  const int* docs;
  i64 sb, st, osb, ost;
  int B, H, K, T;
  float scale;
};

struct Backward {
  const bf16 *q, *k, *v, *dout;
  bf16 *dq, *dk, *dv;
  const float *lse, *delta;
  const int* docs;
  i64 sb, st, osb, ost;
  int B, H, K, T;
  float scale;
};

// pack2 has lo in the low half.
DEV u32 pack2(float lo, float hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
DEV float lo_f(u32 w) { return __uint_as_float(w << 16); }
DEV float hi_f(u32 w) { return __uint_as_float(w & 0xffff0000u); }

DEV float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEV u32 smem_addr(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV void sts32(u32 a, u32 x) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(a), "r"(x) : "memory"); }
DEV void sts128(u32 a, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(a), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
DEV void lds128(u32* r, u32 a) {
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
}
DEV void lds_f2(float& x, float& y, u32 a) {
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x), "=f"(y) : "r"(a));
}

// Asynchronous copies; bytes 0 writes zeros and reads nothing.
DEV void cp16(u32 dst, const void* src, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes));
}
DEV void cp4(u32 dst, const void* src, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dst), "l"(src), "r"(bytes));
}
