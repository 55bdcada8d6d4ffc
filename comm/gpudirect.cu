// What an operation makes of two arrays, element by element: dst = a op b. dst may be a or
// b. 16-bit floats are taken as f32 and rounded once; integers wrap around.
#include "floats.cuh"

typedef float f32;
typedef double f64;

struct Fold {
  void* dst;
  const void *a, *b;
  i64 n;
  i32 op;
  i32 divide;  // the result by that, 0: not at all
  i32 aligned; // all three to 16 bytes
  i32 unused;
};

// As the group's callers number them. AVG is SUM here, see divide.
enum { SUM, AVG, MIN, MAX, PROD };

#define DEV static __device__ __forceinline__

DEV f64 wide(f64 x) { return x; }
DEV i32 wide(i32 x) { return x; }
DEV i64 wide(i64 x) { return x; }
DEV u8 wide(u8 x) { return x; }

DEV void put(f32& y, f32 x) { y = x; }
DEV void put(f64& y, f64 x) { y = x; }
DEV void put(f16& y, f32 x) { y = narrow<f16>(x); }
DEV void put(bf16& y, f32 x) { y = narrow<bf16>(x); }
DEV void put(i32& y, i32 x) { y = x; }
DEV void put(i64& y, i64 x) { y = x; }
DEV void put(u8& y, u8 x) { y = x; }

// Integers wrap around, also where C++ leaves that open.
template <class A> DEV A plus(A a, A b) { return a + b; }
DEV i32 plus(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
DEV i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
template <class A> DEV A times(A a, A b) { return a * b; }
DEV i32 times(i32 a, i32 b) { return (i32)((u32)a * (u32)b); }
DEV i64 times(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }

// join keeps a NaN one, and takes b of two that are equal.
template <class A>
DEV A join(A a, A b, int op, int divide) {
  A x;
  if (op == SUM || op == AVG) x = plus(a, b);
  else if (op == PROD) x = times(a, b);
  else if (op == MIN) x = b <= a || b != b ? b : a;
  else x = b >= a || b != b ? b : a;
  return divide ? (A)(x / divide) : x; // by an int: there are more ranks than a u8 counts
}

template <class T, int N> struct alignas(16) Pack { T e[N]; };

template <class T>
DEV void fold(const Fold& p) {
  constexpr int N = 16 / sizeof(T);
  typedef Pack<T, N> pack;
  const i64 first = (i64)blockIdx.x * blockDim.x + threadIdx.x, step = (i64)gridDim.x * blockDim.x;
  const i64 packs = p.aligned ? p.n / N : 0;
  for (i64 k = first; k < packs; k += step) {
    const pack a = ((const pack*)p.a)[k], b = ((const pack*)p.b)[k];
    pack d;
#pragma unroll
    for (int i = 0; i < N; i++) put(d.e[i], join(wide(a.e[i]), wide(b.e[i]), p.op, p.divide));
    ((pack*)p.dst)[k] = d;
  }
  for (i64 i = packs * N + first; i < p.n; i += step)
    put(((T*)p.dst)[i], join(wide(((const T*)p.a)[i]), wide(((const T*)p.b)[i]), p.op, p.divide));
}

#define KERNEL(T) extern "C" __global__ void __launch_bounds__(512) fold_##T(const Fold p) { fold<T>(p); }
KERNEL(f32)
KERNEL(f64)
KERNEL(f16)
KERNEL(bf16)
KERNEL(i32)
KERNEL(i64)
KERNEL(u8)
