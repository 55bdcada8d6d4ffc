// Conversions between the floating types of elements. A thread has four elements,
// so that both sides are accessed without gaps, f32 by 16 bytes a thread: memory is
// the limit.

struct ConvertArgs {
    void* y;
    const void* x;
    i64 n;
    i32 wide; // both addresses are multiples of 4 elements
};

// Convert: y = x to the nearest value, ties to even.
template <class Y, class X> struct Convert : ConvertArgs {
    template <int W> __device__ __forceinline__ void piece(i64 at) const {
        float v[W];
        read(v, static_cast<const X*>(x) + at);
        write(static_cast<Y*>(y) + at, v);
    }
};

#define CONVERT(Y, X, NAME) \
    extern "C" __global__ void __launch_bounds__(256) NAME(Convert<Y, X> op) { each<4>(op.n, op.wide, op); }

CONVERT(float, bf16, f32_from_bf16)
CONVERT(float, f16, f32_from_f16)
CONVERT(bf16, float, bf16_from_f32)
CONVERT(bf16, f16, bf16_from_f16)
CONVERT(f16, float, f16_from_f32)
CONVERT(f16, bf16, f16_from_bf16)
