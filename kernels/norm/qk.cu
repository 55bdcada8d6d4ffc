// Normalisation of each head of queries and of keys by itself.
//
// Letters: N rows, E heads side by side (queries, keys, values), D head size. Items are
// the N*E heads, one behind the other in memory.
//
// In the vector kernels a group of lanes takes an item, each lane 8 channels: a power
// of two of lanes, of which the last may be idle. So a lane has the same channels of
// every item, weights stay in registers, and so do the sums over items that the
// backward pass needs. Every item is read once and written once.
//
// Heads that are no multiple of 8 channels, begin at other than multiples of 16 bytes
// or have more than 256 channels take the plain kernels, a warp an item.

constexpr int W = 8;       // channels a lane: 16 bytes
constexpr int WARPS = 8;   // of every block
constexpr int MOST = 32 * W; // channels of an item in the vector kernels

struct QKForwardArgs {
    bf16* y;       // [N,E,D]
    const bf16* x; // [N,E,D]
    const bf16* wq; // [D]
    const bf16* wk; // [D]
    i64 items;
    i32 all, queries, normed, d; // heads of a row; of queries; of queries and keys
    i32 lanes;                   // of a group
    float inverse;               // 1/D
    float eps;
};

struct QKBackwardArgs {
    bf16* dx;      // [N,E,D], holds dy
    const bf16* x; // [N,E,D]
    const bf16* wq;
    const bf16* wk;
    float* dwq; // [rows,D]: sums over the items of a block, or of a warp in the plain kernel;
    float* dwk; // both null where neither is wanted
    i64 items;
    i32 all, queries, normed, d;
    i32 lanes;
    float inverse;
    float eps;
};

// Walk takes a group of lanes over its items, and keeps count of which head of a row
// an item is. All lanes of a warp make the same number of steps, so that they may add
// up together: items at and behind the end are nobody's.
struct Walk {
    i64 item, items, stride;
    i32 head, step, all, group;

    __device__ __forceinline__ Walk(i64 items, i32 all, i32 lanes) : items(items), all(all) {
        const i32 groups = 32 / lanes; // of a warp
        group = threadIdx.x % 32 / lanes;
        item = ((i64)blockIdx.x * WARPS + threadIdx.x / 32) * groups + group;
        stride = (i64)gridDim.x * WARPS * groups;
        head = item % all;
        step = stride % all;
    }
    __device__ __forceinline__ bool more() const { return item - group < items; }
    __device__ __forceinline__ void next() {
        item += stride;
        head += step;
        if (head >= all) head -= all;
    }
};

// groupSum is the sum over a group, the same bits in each of its lanes.
__device__ __forceinline__ float groupSum(float x, i32 lanes) {
    for (i32 d = lanes / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

// qknorm_vector reads 2 bytes an element and writes 2.
extern "C" __global__ void __launch_bounds__(32 * WARPS) qknorm_vector(QKForwardArgs a) {
    const i32 at = threadIdx.x % a.lanes * W;
    const bool mine = at < a.d;
    Vec<bf16, W> wq = {}, wk = {};
    if (mine) wq = fetch<W>(a.wq + at), wk = fetch<W>(a.wk + at);
    for (Walk w(a.items, a.all, a.lanes); w.more(); w.next()) {
        const bool has = mine && w.item < a.items;
        Vec<bf16, W> v = {};
        if (has) v = fetch<W>(a.x + w.item * a.d + at);
        float x[W], square = 0;
        unpack(x, v);
#pragma unroll
        for (int i = 0; i < W; i++) square += x[i] * x[i];
        const float rstd = rsqrtf(groupSum(square, a.lanes) * a.inverse + a.eps);
        if (!has) continue;
        if (w.head < a.normed) {
#pragma unroll
            for (int i = 0; i < W; i++) x[i] *= rstd * (w.head < a.queries ? wq[i] : wk[i]);
        }
        write(a.y + w.item * a.d + at, x);
    }
}

// qknorm_backward_vector: with x̂ = x*rstd and g = dy*w, dx = rstd*(g - x̂*mean(g*x̂)), and
// the block's sums of dy*x̂. Reads 4 bytes an element of queries and keys, writes 2.
extern "C" __global__ void __launch_bounds__(32 * WARPS) qknorm_backward_vector(QKBackwardArgs a) {
    __shared__ float sums[2][WARPS][MOST];
    const i32 at = threadIdx.x % a.lanes * W;
    const bool mine = at < a.d;
    Vec<bf16, W> wq = {}, wk = {};
    if (mine) wq = fetch<W>(a.wq + at), wk = fetch<W>(a.wk + at);
    float dwq[W] = {}, dwk[W] = {};
    for (Walk w(a.items, a.all, a.lanes); w.more(); w.next()) {
        const bool has = mine && w.item < a.items && w.head < a.normed, query = w.head < a.queries;
        Vec<bf16, W> vx = {}, vdy = {};
        if (has) {
            vx = fetch<W>(a.x + w.item * a.d + at);
            vdy = fetch<W>(a.dx + w.item * a.d + at);
        }
        float x[W], dy[W], scale[W], square = 0, product = 0;
        unpack(x, vx);
        unpack(dy, vdy);
#pragma unroll
        for (int i = 0; i < W; i++) {
            scale[i] = query ? wq[i] : wk[i];
            square += x[i] * x[i];
            product += dy[i] * scale[i] * x[i];
        }
        const float rstd = rsqrtf(groupSum(square, a.lanes) * a.inverse + a.eps);
        const float m = groupSum(product, a.lanes) * a.inverse * rstd; // the mean of g*x̂
        if (!has) continue;
#pragma unroll
        for (int i = 0; i < W; i++) {
            const float xh = x[i] * rstd;
            if (query) dwq[i] += dy[i] * xh;
            else dwk[i] += dy[i] * xh;
            dy[i] = rstd * (dy[i] * scale[i] - xh * m);
        }
        write(a.dx + w.item * a.d + at, dy);
    }
    if (!a.dwq) return;
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < W; i++) { // over the groups of the warp
        for (i32 d = a.lanes; d < 32; d *= 2) {
            dwq[i] += __shfl_xor_sync(0xffffffffu, dwq[i], d);
            dwk[i] += __shfl_xor_sync(0xffffffffu, dwk[i], d);
        }
        if (lane < a.lanes) {
            sums[0][warp][at + i] = dwq[i];
            sums[1][warp][at + i] = dwk[i];
        }
    }
    __syncthreads();
    if (threadIdx.x >= a.d) return;
    float q = 0, k = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        q += sums[0][i][threadIdx.x];
        k += sums[1][i][threadIdx.x];
    }
    a.dwq[(i64)blockIdx.x * a.d + threadIdx.x] = q;
    a.dwk[(i64)blockIdx.x * a.d + threadIdx.x] = k;
}

// qknorm_plain is qknorm_vector for heads of any size at any address.
extern "C" __global__ void __launch_bounds__(32 * WARPS) qknorm_plain(QKForwardArgs a) {
    const i32 lane = threadIdx.x % 32;
    for (Walk w(a.items, a.all, 32); w.more(); w.next()) {
        const bf16* x = a.x + w.item * a.d;
        bf16* y = a.y + w.item * a.d;
        if (w.head >= a.normed) {
            for (i32 i = lane; i < a.d; i += 32) y[i] = x[i];
            continue;
        }
        const bf16* scale = w.head < a.queries ? a.wq : a.wk;
        float square = 0;
        for (i32 i = lane; i < a.d; i += 32) square += wide(x[i]) * wide(x[i]);
        const float rstd = rsqrtf(warpSum(square) * a.inverse + a.eps);
        for (i32 i = lane; i < a.d; i += 32) y[i] = narrow<bf16>(wide(x[i]) * (rstd * wide(scale[i])));
    }
}

// qknorm_backward_plain is qknorm_backward_vector for heads of any size at any address.
// The sums over items grow in the scratch memory itself, a row a warp: no other thread
// touches a lane's channels.
extern "C" __global__ void __launch_bounds__(32 * WARPS) qknorm_backward_plain(QKBackwardArgs a) {
    const i32 lane = threadIdx.x % 32;
    const i64 row = ((i64)blockIdx.x * WARPS + threadIdx.x / 32) * a.d;
    if (a.dwq) {
        for (i32 i = lane; i < a.d; i += 32) a.dwq[row + i] = a.dwk[row + i] = 0;
    }
    for (Walk w(a.items, a.all, 32); w.more(); w.next()) {
        if (w.head >= a.normed) continue;
        const bf16* x = a.x + w.item * a.d;
        bf16* dx = a.dx + w.item * a.d;
        const bool query = w.head < a.queries;
        const bf16* scale = query ? a.wq : a.wk;
        float* dw = a.dwq ? (query ? a.dwq : a.dwk) + row : nullptr;
        float square = 0, product = 0;
        for (i32 i = lane; i < a.d; i += 32) {
            square += wide(x[i]) * wide(x[i]);
            product += wide(dx[i]) * wide(scale[i]) * wide(x[i]);
        }
        const float rstd = rsqrtf(warpSum(square) * a.inverse + a.eps);
        const float m = warpSum(product) * a.inverse * rstd;
        for (i32 i = lane; i < a.d; i += 32) {
            const float xh = wide(x[i]) * rstd, dy = wide(dx[i]);
            if (dw) dw[i] += dy * xh;
            dx[i] = narrow<bf16>(rstd * (dy * wide(scale[i]) - xh * m));
        }
    }
}
