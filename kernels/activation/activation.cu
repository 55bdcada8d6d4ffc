// The functions of feed-forward blocks. All read each byte once and write each
// once: memory is the limit. Exponentials are the fast ones, good to 1e-5 where a
// bf16 is good to 4e-3.

struct GatedArgs {
    bf16* out;      // y [N,F], or dx [N,2F], which may be x
    const bf16* dy; // [N,F], backward
    const bf16* x;  // [N,2F]: gate and up side by side
    i64 n;
    i32 f;
    i32 wide; // F is a multiple of 8, all addresses are multiples of 16 bytes
};

struct MapArgs {
    bf16* out;      // [n], may be dy or x
    const bf16* dy; // [n], backward
    const bf16* x;  // [n]
    i64 n;
    i32 wide; // all addresses are multiples of 16 bytes
};

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// gated hands out pieces of W channels of a row, one a thread: op.piece<W>(row,
// channel). Only the block's first piece is divided in 64 bits.
template <int W, class Op> __device__ __forceinline__ void gated(const Op& op) {
    const u32 pieces = op.f / W; // of a row
    const i64 first = (i64)blockIdx.x * blockDim.x, row = first / pieces;
    const u32 piece = (u32)(first - row * pieces) + threadIdx.x;
    if (row + piece / pieces < op.n) op.template piece<W>(row + piece / pieces, piece % pieces * W);
}
template <class Op> __device__ __forceinline__ void gated(const Op& op) {
    if (op.wide)
        gated<8>(op);
    else
        gated<1>(op);
}

// swiglu: y = silu(gate)*up, silu(g) = g*sigmoid(g).
struct SwiGLU : GatedArgs {
    template <int W> __device__ __forceinline__ void piece(i64 row, u32 channel) const {
        float gate[W], up[W];
        const i64 at = row * 2 * f + channel;
        read(gate, x + at);
        read(up, x + at + f);
#pragma unroll
        for (int i = 0; i < W; i++) up[i] *= gate[i] * sigmoid(gate[i]);
        write(out + row * f + channel, up);
    }
};
extern "C" __global__ void __launch_bounds__(256) swiglu(SwiGLU op) { gated(op); }

// swiglu_backward: dgate = dy*up*silu'(gate), dup = dy*silu(gate).
struct SwiGLUBackward : GatedArgs {
    template <int W> __device__ __forceinline__ void piece(i64 row, u32 channel) const {
        float gate[W], up[W], d[W];
        const i64 at = row * 2 * f + channel;
        read(gate, x + at);
        read(up, x + at + f);
        read(d, dy + row * f + channel);
#pragma unroll
        for (int i = 0; i < W; i++) {
            const float g = gate[i], s = sigmoid(g);
            gate[i] = d[i] * up[i] * s * (1 + g * (1 - s));
            up[i] = d[i] * g * s;
        }
        write(out + at, gate);
        write(out + at + f, up);
    }
};
extern "C" __global__ void __launch_bounds__(256) swiglu_backward(SwiGLUBackward op) { gated(op); }

// x/2*(1+tanh(u)) is x*sigmoid(2u), u = sqrt(2/pi)*(x + 0.044715x³).
constexpr float twice = 2 * 0.7978845608028654f, cubic = 0.044715f;

// gelu: GPT-2's approximation.
struct GELU : MapArgs {
    template <int W> __device__ __forceinline__ void piece(i64 at) const {
        float v[W];
        read(v, x + at);
#pragma unroll
        for (int i = 0; i < W; i++) v[i] *= sigmoid(twice * v[i] * (1 + cubic * v[i] * v[i]));
        write(out + at, v);
    }
};
extern "C" __global__ void __launch_bounds__(256) gelu(GELU op) { each<8>(op.n, op.wide, op); }

// gelu_backward: dx = dy*gelu'(x). Where x is so large that its square overflows,
// s*(1-s) is 0, and so is its product with the square held to a finite number.
struct GELUBackward : MapArgs {
    template <int W> __device__ __forceinline__ void piece(i64 at) const {
        float v[W], d[W];
        read(v, x + at);
        read(d, dy + at);
#pragma unroll
        for (int i = 0; i < W; i++) {
            const float square = v[i] * v[i], s = sigmoid(twice * v[i] * (1 + cubic * square));
            d[i] *= s + v[i] * s * (1 - s) * twice * (1 + 3 * cubic * fminf(square, 1e30f));
        }
        write(out + at, d);
    }
};
extern "C" __global__ void __launch_bounds__(256) gelu_backward(GELUBackward op) { each<8>(op.n, op.wide, op); }
