// Elements of arrays in packs of 16 bytes, from any address on and of any number, and
// what an operation makes of them.

// part reads n bytes, and at most 16, by elements of T. The rest of the pack is zero.
template <class T>
DEV Pack part(const char* p, i64 n) {
    Pack v = {0, 0};
#pragma unroll 1
    for (int k = 0; k < (int)(16 / sizeof(T)); k++) {
        const int at = k * sizeof(T);
        if (at >= n) break;
        const u64 w = ((const T*)p)[k];
        if (at < 8) v.lo |= w << 8 * at;
        else v.hi |= w << 8 * (at - 8);
    }
    return v;
}

// load reads a pack of which left bytes are the array's; where there are none it reads
// nothing.
DEV Pack load(const char* p, i64 left) {
    const u64 at = (u64)p;
    if (left >= 16 && at % 16 == 0) return *(const Pack*)p;
    if (left >= 16 && at % 4 == 0) return part<u32>(p, 16);
    return part<u8>(p, left);
}

template <class T>
DEV void lay(char* p, Pack v, i64 n) {
#pragma unroll 1
    for (int k = 0; k < (int)(16 / sizeof(T)); k++) {
        const int at = k * sizeof(T);
        if (at >= n) break;
        ((T*)p)[k] = (T)(at < 8 ? v.lo >> 8 * at : v.hi >> 8 * (at - 8));
    }
}

// store is load's counterpart.
DEV void store(char* p, Pack v, i64 left) {
    const u64 at = (u64)p;
    if (left >= 16 && at % 16 == 0)
        *(Pack*)p = v;
    else if (left >= 16 && at % 4 == 0)
        lay<u32>(p, v, 16);
    else
        lay<u8>(p, v, left);
}

// As<T> is what elements of T are added up in: 16-bit floats in f32.
template <class T> struct As { typedef T type; };
template <> struct As<bf16> { typedef float type; };
template <> struct As<f16> { typedef float type; };

// value is the element whose bits are the low ones of w, bits the other way.
template <class T> __device__ __forceinline__ typename As<T>::type value(u64 w) { return (T)w; }
template <> __device__ __forceinline__ float value<float>(u64 w) { return __uint_as_float((u32)w); }
template <> __device__ __forceinline__ double value<double>(u64 w) { return __longlong_as_double((i64)w); }
template <> __device__ __forceinline__ float value<bf16>(u64 w) { return wide(bf16{(u16)w}); }
template <> __device__ __forceinline__ float value<f16>(u64 w) { return wide(f16{(u16)w}); }

template <class T> __device__ __forceinline__ u64 bits(typename As<T>::type x) { return (u64)x; }
template <> __device__ __forceinline__ u64 bits<i32>(i32 x) { return (u32)x; }
template <> __device__ __forceinline__ u64 bits<float>(float x) { return __float_as_uint(x); }
template <> __device__ __forceinline__ u64 bits<double>(double x) { return (u64)__double_as_longlong(x); }
template <> __device__ __forceinline__ u64 bits<bf16>(float x) { return narrow<bf16>(x).bits; }
template <> __device__ __forceinline__ u64 bits<f16>(float x) { return narrow<f16>(x).bits; }

// The operations, numbered as the package's callers number them.
enum { SUM, AVG, MIN, MAX, PROD };

// Integers wrap around, also where C++ leaves that open.
template <class A> __device__ __forceinline__ A plus(A a, A b) { return a + b; }
template <> __device__ __forceinline__ i32 plus(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
template <> __device__ __forceinline__ i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
template <class A> __device__ __forceinline__ A times(A a, A b) { return a * b; }
template <> __device__ __forceinline__ i32 times(i32 a, i32 b) { return (i32)((u32)a * (u32)b); }
template <> __device__ __forceinline__ i64 times(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }

// Elements is the elements of a pack, in the type that they are added up in.
template <class T>
struct Elements {
    typedef typename As<T>::type A;
    static const int N = 16 / sizeof(T);
    A x[N];

    __device__ __forceinline__ explicit Elements(Pack v) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int at = k * sizeof(T);
            x[k] = value<T>(at < 8 ? v.lo >> 8 * at : v.hi >> 8 * (at - 8));
        }
    }

    // fold joins what another rank has. A NaN stays one, and of two equal elements the
    // later rank's is taken.
    __device__ __forceinline__ void fold(const Elements& b, int op) {
        if (op == SUM || op == AVG) {
#pragma unroll
            for (int k = 0; k < N; k++) x[k] = plus<A>(x[k], b.x[k]);
        } else if (op == PROD) {
#pragma unroll
            for (int k = 0; k < N; k++) x[k] = times<A>(x[k], b.x[k]);
        } else if (op == MIN) {
#pragma unroll
            for (int k = 0; k < N; k++) x[k] = b.x[k] <= x[k] || b.x[k] != b.x[k] ? b.x[k] : x[k];
        } else {
#pragma unroll
            for (int k = 0; k < N; k++) x[k] = b.x[k] >= x[k] || b.x[k] != b.x[k] ? b.x[k] : x[k];
        }
    }

    // pack rounds to T, once; a mean is divided before. Means of integers drop the
    // fraction.
    __device__ __forceinline__ Pack pack(int op, int ranks) const {
        Pack v = {0, 0};
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int at = k * sizeof(T);
            const u64 w = bits<T>(op == AVG ? (A)(x[k] / (A)ranks) : x[k]);
            if (at < 8) v.lo |= w << 8 * at;
            else v.hi |= w << 8 * (at - 8);
        }
        return v;
    }
};
