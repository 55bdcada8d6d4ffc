// RMSNorm and LayerNorm over rows of C channels.
//
// A block walks rows (block b takes rows b, b+blocks, ...), and a thread owns the
// same channels of every row: V vectors of 8, thread t's vector v being number
// v*threads+t. So weights stay in registers, the sums over rows that the backward
// pass needs never leave them, and every row is read once and written once. The next
// row is fetched before this one is reduced: memory is never idle, and its speed is
// the kernels'.
//
// Rows that are no multiple of 8 channels, begin at other than multiples of 16 bytes
// or have more than 8192 channels take the plain kernels, which read a row two or
// three times (from the cache).

constexpr int W = 8; // channels a vector: 16 bytes

struct ForwardArgs {
    bf16* y;       // [N,C], may be x
    float* mean;   // [N], LayerNorm
    float* rstd;   // [N]
    const bf16* x; // [N,C]
    const bf16* w; // [C]
    const bf16* b; // [C], LayerNorm
    i64 n;
    i32 c;
    float inverse; // 1/C
    float eps;
};

struct BackwardArgs {
    bf16* dx;          // [N,C], may be dy
    const bf16* dy;    // [N,C]
    const bf16* x;     // [N,C]
    const bf16* w;     // [C]
    const float* mean; // [N], LayerNorm
    const float* rstd; // [N]
    float* dw;         // [blocks,C]: each block's sum over its rows; null where not wanted
    float* db;         // the same, LayerNorm
    i64 n;
    i32 c;
    float inverse; // 1/C
    i32 add;       // dx += instead of dx =
};

struct ColumnsArgs {
    const float* dw; // [rows,C]
    const float* db;
    void* dwOut; // [C], bf16 or f32
    void* dbOut;
    i32 rows, c;
    i32 f32; // the type of the outputs
    i32 add; // += instead of =
};

// Sums adds K numbers of every thread up over the block. Calls take turns with two
// halves of the scratch, so that one barrier a call is enough: who writes a half
// again has passed the barrier after which all had read it.
template <int K> struct Sums {
    float (*scratch)[K][32]; // shared, [2]
    int turn;

    __device__ __forceinline__ void operator()(float (&x)[K]) {
        turn ^= 1;
#pragma unroll
        for (int k = 0; k < K; k++) {
            x[k] = warpSum(x[k]);
            if (threadIdx.x % 32 == 0) scratch[turn][k][threadIdx.x / 32] = x[k];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < K; k++) {
            x[k] = 0;
#pragma unroll 4
            for (u32 w = 0; w < blockDim.x / 32; w++) x[k] += scratch[turn][k][w];
        }
    }
};

// forward: y = (x-mean)*rstd*w + b, LAYER, or y = x*rstd*w. Reads 2 bytes an element
// and writes 2.
template <bool LAYER, int V> __device__ __forceinline__ void forward(const ForwardArgs& a) {
    __shared__ float scratch[2][1][32];
    Sums<1> sums{scratch, 0};
    bool mine[V];
    i32 at[V];
    Vec<bf16, W> w[V] = {}, b[V] = {}, next[V] = {};
#pragma unroll
    for (int v = 0; v < V; v++) {
        at[v] = (v * blockDim.x + threadIdx.x) * W;
        mine[v] = at[v] < a.c;
        if (!mine[v]) continue;
        w[v] = fetch<W>(a.w + at[v]);
        if (LAYER) b[v] = fetch<W>(a.b + at[v]);
        next[v] = fetch<W>(a.x + (i64)blockIdx.x * a.c + at[v]);
    }
    for (i64 row = blockIdx.x; row < a.n; row += gridDim.x) {
        Vec<bf16, W> now[V];
#pragma unroll
        for (int v = 0; v < V; v++) {
            now[v] = next[v];
            if (mine[v] && row + gridDim.x < a.n) next[v] = fetch<W>(a.x + (row + gridDim.x) * a.c + at[v]);
        }
        float mean = 0;
        if (LAYER) {
            float sum[1] = {};
#pragma unroll
            for (int v = 0; v < V; v++) {
                float x[W];
                unpack(x, now[v]);
#pragma unroll
                for (int i = 0; i < W; i++) sum[0] += x[i];
                forget(now[v]);
            }
            sums(sum);
            mean = sum[0] * a.inverse;
        }
        float square[1] = {};
#pragma unroll
        for (int v = 0; v < V; v++) {
            if (!mine[v]) continue;
            float x[W];
            unpack(x, now[v]);
#pragma unroll
            for (int i = 0; i < W; i++) square[0] += (x[i] - mean) * (x[i] - mean);
            forget(now[v]);
        }
        sums(square);
        const float rstd = rsqrtf(square[0] * a.inverse + a.eps);
#pragma unroll
        for (int v = 0; v < V; v++) {
            if (!mine[v]) continue;
            float x[W], scale[W], shift[W];
            unpack(x, now[v]);
            forget(w[v]);
            unpack(scale, w[v]);
            forget(b[v]);
            unpack(shift, b[v]);
#pragma unroll
            for (int i = 0; i < W; i++) {
                x[i] = (x[i] - mean) * rstd * scale[i];
                if (LAYER) x[i] += shift[i];
            }
            write(a.y + row * a.c + at[v], x);
        }
        if (threadIdx.x == 0) {
            if (LAYER) a.mean[row] = mean;
            a.rstd[row] = rstd;
        }
    }
}

// backward: with x̂ = (x-mean)*rstd or x*rstd and g = dy*w,
// dx (+)= rstd*(g - mean(g) - x̂*mean(g*x̂)), LAYER, or rstd*(g - x̂*mean(g*x̂)), and
// the block's sums of dy*x̂ and dy. Reads 4 bytes an element, 6 where it adds, and
// writes 2.
template <bool LAYER, int V> __device__ __forceinline__ void backward(const BackwardArgs& a) {
    constexpr int K = LAYER ? 2 : 1;
    __shared__ float scratch[2][K][32];
    Sums<K> sums{scratch, 0};
    bool mine[V];
    i32 at[V];
    Vec<bf16, W> w[V] = {};
    float dw[V][W] = {}, db[V][W] = {};

    // The row after this one, on its way.
    Vec<bf16, W> nextX[V] = {}, nextDY[V] = {}, nextDX[V] = {};
    float nextMean = 0, nextRstd = 0;
    auto prefetch = [&](i64 row) {
        if (row >= a.n) return;
#pragma unroll
        for (int v = 0; v < V; v++) {
            if (!mine[v]) continue;
            const i64 p = row * a.c + at[v];
            nextX[v] = fetch<W>(a.x + p);
            nextDY[v] = fetch<W>(a.dy + p);
            if (a.add) nextDX[v] = fetch<W>(a.dx + p);
        }
        nextRstd = a.rstd[row];
        if (LAYER) nextMean = a.mean[row];
    };
#pragma unroll
    for (int v = 0; v < V; v++) {
        at[v] = (v * blockDim.x + threadIdx.x) * W;
        mine[v] = at[v] < a.c;
        if (mine[v]) w[v] = fetch<W>(a.w + at[v]);
    }
    prefetch(blockIdx.x);
    for (i64 row = blockIdx.x; row < a.n; row += gridDim.x) {
        const float mean = nextMean, rstd = nextRstd;
        Vec<bf16, W> vx[V], vdy[V], vdx[V]; // kept packed across the barrier
#pragma unroll
        for (int v = 0; v < V; v++) vx[v] = nextX[v], vdy[v] = nextDY[v], vdx[v] = nextDX[v];
        prefetch(row + gridDim.x);

        float sum[K] = {};
#pragma unroll
        for (int v = 0; v < V; v++) {
            if (!mine[v]) continue;
            float x[W], dy[W], scale[W];
            unpack(x, vx[v]);
            unpack(dy, vdy[v]);
            unpack(scale, w[v]);
#pragma unroll
            for (int i = 0; i < W; i++) {
                const float xh = (x[i] - mean) * rstd, g = dy[i] * scale[i];
                sum[0] += g * xh;
                dw[v][i] += dy[i] * xh;
                if (LAYER) sum[K - 1] += g, db[v][i] += dy[i];
            }
            forget(vx[v]);
            forget(vdy[v]);
            forget(w[v]);
        }
        sums(sum);
        const float m = sum[0] * a.inverse, mg = LAYER ? sum[K - 1] * a.inverse : 0;
#pragma unroll
        for (int v = 0; v < V; v++) {
            if (!mine[v]) continue;
            float x[W], dy[W], scale[W], dx[W];
            unpack(x, vx[v]);
            unpack(dy, vdy[v]);
            unpack(scale, w[v]);
            unpack(dx, vdx[v]);
#pragma unroll
            for (int i = 0; i < W; i++) {
                const float xh = (x[i] - mean) * rstd, g = dy[i] * scale[i];
                dx[i] += rstd * (g - mg - xh * m);
            }
            write(a.dx + row * a.c + at[v], dx);
        }
    }
    if (!a.dw) return;
#pragma unroll
    for (int v = 0; v < V; v++) {
        if (!mine[v]) continue;
        const i64 p = (i64)blockIdx.x * a.c + at[v];
        write(a.dw + p, dw[v]);
        if (LAYER) write(a.db + p, db[v]);
    }
}

// plainForward is forward for rows of any length at any address: thread t has
// channels t, t+threads, ...
template <bool LAYER> __device__ __forceinline__ void plainForward(const ForwardArgs& a) {
    __shared__ float scratch[2][1][32];
    Sums<1> sums{scratch, 0};
    for (i64 row = blockIdx.x; row < a.n; row += gridDim.x) {
        const bf16* x = a.x + row * a.c;
        bf16* y = a.y + row * a.c;
        float mean = 0;
        if (LAYER) {
            float sum[1] = {};
            for (i32 i = threadIdx.x; i < a.c; i += blockDim.x) sum[0] += wide(x[i]);
            sums(sum);
            mean = sum[0] * a.inverse;
        }
        float square[1] = {};
        for (i32 i = threadIdx.x; i < a.c; i += blockDim.x) {
            const float d = wide(x[i]) - mean;
            square[0] += d * d;
        }
        sums(square);
        const float rstd = rsqrtf(square[0] * a.inverse + a.eps);
        for (i32 i = threadIdx.x; i < a.c; i += blockDim.x) {
            const float v = (wide(x[i]) - mean) * rstd * wide(a.w[i]);
            y[i] = narrow<bf16>(LAYER ? v + wide(a.b[i]) : v);
        }
        if (threadIdx.x == 0) {
            if (LAYER) a.mean[row] = mean;
            a.rstd[row] = rstd;
        }
    }
}

// plainBackward is backward for rows of any length at any address. The sums over
// rows grow in the scratch memory itself: no other thread touches these channels.
template <bool LAYER> __device__ __forceinline__ void plainBackward(const BackwardArgs& a) {
    constexpr int K = LAYER ? 2 : 1;
    __shared__ float scratch[2][K][32];
    Sums<K> sums{scratch, 0};
    float* dw = a.dw ? a.dw + (i64)blockIdx.x * a.c : nullptr;
    float* db = LAYER && a.dw ? a.db + (i64)blockIdx.x * a.c : nullptr;
    for (i64 row = blockIdx.x; row < a.n; row += gridDim.x) {
        const bf16 *x = a.x + row * a.c, *dy = a.dy + row * a.c;
        bf16* dx = a.dx + row * a.c;
        const float mean = LAYER ? a.mean[row] : 0, rstd = a.rstd[row];
        const bool first = row == blockIdx.x;
        float sum[K] = {};
        for (i32 i = threadIdx.x; i < a.c; i += blockDim.x) {
            const float xh = (wide(x[i]) - mean) * rstd, d = wide(dy[i]), g = d * wide(a.w[i]);
            sum[0] += g * xh;
            if (LAYER) sum[K - 1] += g;
            if (dw) dw[i] = first ? d * xh : dw[i] + d * xh;
            if (db) db[i] = first ? d : db[i] + d;
        }
        sums(sum);
        const float m = sum[0] * a.inverse, mg = LAYER ? sum[K - 1] * a.inverse : 0;
        for (i32 i = threadIdx.x; i < a.c; i += blockDim.x) {
            const float xh = (wide(x[i]) - mean) * rstd, g = wide(dy[i]) * wide(a.w[i]);
            const float v = rstd * (g - mg - xh * m);
            dx[i] = narrow<bf16>(a.add ? wide(dx[i]) + v : v);
        }
    }
}

#define KERNELS(V, THREADS, FORWARD, BACKWARD)                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) rmsnorm_##V(ForwardArgs a) { forward<false, V>(a); } \
    extern "C" __global__ void __launch_bounds__(THREADS) layernorm_##V(ForwardArgs a) { forward<true, V>(a); } \
    extern "C" __global__ void __launch_bounds__(THREADS) rmsnorm_backward_##V(BackwardArgs a) { backward<false, V>(a); } \
    extern "C" __global__ void __launch_bounds__(THREADS) layernorm_backward_##V(BackwardArgs a) { backward<true, V>(a); }

KERNELS(1, 512, 3, 2) // up to 4096 channels
KERNELS(2, 512, 2, 1) // up to 8192

extern "C" __global__ void __launch_bounds__(256) rmsnorm_plain(ForwardArgs a) { plainForward<false>(a); }
extern "C" __global__ void __launch_bounds__(256) layernorm_plain(ForwardArgs a) { plainForward<true>(a); }
extern "C" __global__ void __launch_bounds__(256) rmsnorm_backward_plain(BackwardArgs a) { plainBackward<false>(a); }
extern "C" __global__ void __launch_bounds__(256) layernorm_backward_plain(BackwardArgs a) { plainBackward<true>(a); }

// norm_columns adds the blocks' sums up, in order: out[C] (+)= the sum over rows of
// part[rows,C]. A block has 8 columns (a sector of memory) and 128 threads for each;
// the second blocks in y are db's. The parts are still in the L2 cache.
extern "C" __global__ void __launch_bounds__(1024) norm_columns(ColumnsArgs a) {
    __shared__ float scratch[32][8];
    const float* part = blockIdx.y ? a.db : a.dw;
    const i32 column = blockIdx.x * 8 + threadIdx.x % 8;
    float sum = 0;
    if (column < a.c) {
#pragma unroll 4
        for (i32 row = threadIdx.x / 8; row < a.rows; row += 128) sum += part[(i64)row * a.c + column];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane < 8) scratch[warp][lane] = sum;
    __syncthreads();
    const i32 mine = blockIdx.x * 8 + warp; // warps 0 to 7 finish a column each
    if (warp >= 8 || mine >= a.c) return;
    sum = warpSum(scratch[lane][warp]);
    if (lane != 0) return;
    void* out = blockIdx.y ? a.dbOut : a.dwOut;
    if (a.f32) {
        float* p = static_cast<float*>(out) + mine;
        *p = a.add ? *p + sum : sum;
    } else {
        bf16* p = static_cast<bf16*>(out) + mine;
        *p = narrow<bf16>(a.add ? wide(*p) + sum : sum);
    }
}
