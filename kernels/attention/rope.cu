// Rotary positions, in place.
//
// Letters: B sequences, T positions, E heads side by side, D head size, P positions
// in the tables.

struct RoPE {
    void* x;                 // [B,T,E,D]
    const float *cos, *sin;  // [P,D/2]
    i64 rows, stride;        // B*T; elements between rows, E*D
    i32 t, half, heads, pos; // half is D/2
    float sign;              // of the sines: -1 turns back
};

constexpr int warps = 8; // of every block

// The first `heads` heads of each row turn: element i of a head is the real part and
// element i+D/2 the imaginary part of a number that is multiplied by cos + i*sin of
// its row's position. A warp takes a row. Its lanes lie side by side along half a
// head, W elements each, and over as many heads as fit; a lane reads its cosines and
// sines once for all the heads it turns. Each element is read and written once.
template <class T, int W> __device__ void rope(const RoPE& p) {
    int lane = threadIdx.x % 32;
    i64 row = (i64)blockIdx.x * warps + threadIdx.x / 32;
    if (row >= p.rows) return;
    int across = min(p.half / W, 32), heads = 32 / across; // lanes of a head, heads at a time
    if (lane >= across * heads) return;
    T* x = (T*)p.x + row * p.stride;
    i64 angle = (p.pos + row % p.t) * p.half;
    for (int i = lane % across * W; i < p.half; i += across * W) {
        float c[W], s[W];
        read(c, p.cos + angle + i);
        read(s, p.sin + angle + i);
#pragma unroll
        for (int k = 0; k < W; k++) s[k] *= p.sign;
        for (int h = lane / across; h < p.heads; h += heads) {
            T* re = x + (i64)h * 2 * p.half + i;
            T* im = re + p.half;
            float a[W], b[W], turned[W];
            read(a, re);
            read(b, im);
#pragma unroll
            for (int k = 0; k < W; k++) {
                turned[k] = a[k] * c[k] - b[k] * s[k];
                b[k] = b[k] * c[k] + a[k] * s[k];
            }
            write(re, turned);
            write(im, b);
        }
    }
}

// rope_T_W: W is 8 where that divides D/2 and all addresses are multiples of 16, else 1.
typedef float f32;
#define ROPE(T, W) \
    extern "C" __global__ void __launch_bounds__(32 * warps) rope_##T##_##W(const RoPE p) { rope<T, W>(p); }
ROPE(f32, 1) ROPE(f32, 8) ROPE(bf16, 1) ROPE(bf16, 8)
