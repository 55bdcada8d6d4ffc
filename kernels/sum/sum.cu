// Sums over whole tensors, in f64: every element is widened first, so the squares
// of bf16 and f32 are exact, and nothing overflows that is finite. The order
// depends on the number of elements alone: pieces go round over blocks and threads,
// whose sums are added by the trees of blockSum. Reading is the limit.

struct SumArgs {
    const void* x; // [n]
    double* part;  // [blocks], where there are several
    double* out;   // [1]
    i64 n;
    i32 wide; // x is at a multiple of 16 bytes
    i32 add;  // out += instead of =
};

__device__ __forceinline__ void finish(const SumArgs& a, double total) {
    if (threadIdx.x == 0) *a.out = a.add ? *a.out + total : total;
}

// pieces sums the pieces of W elements that are this thread's, four of them on their
// way at a time.
template <bool SQUARE, int W, class T> __device__ __forceinline__ double pieces(const T* x, i64 n) {
    constexpr int AHEAD = 4;
    const i64 stride = (i64)gridDim.x * blockDim.x, end = n / W;
    double sum[2] = {};
    auto add = [&](const Vec<T, W>& v) {
#pragma unroll
        for (int j = 0; j < W; j++) {
            const double d = v[j];
            sum[j % 2] += SQUARE ? d * d : d;
        }
    };
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (AHEAD - 1) * stride < end; i += AHEAD * stride) {
        Vec<T, W> v[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) v[k] = fetch<W>(x + (i + k * stride) * W);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) add(v[k]);
    }
    for (; i < end; i += stride) add(fetch<W>(x + i * W));
    return sum[0] + sum[1];
}

template <bool SQUARE, class T> __device__ __forceinline__ void sum(const SumArgs& a) {
    constexpr int W = 16 / sizeof(T);
    __shared__ double scratch[32];
    const T* x = static_cast<const T*>(a.x);
    double mine;
    if (a.wide) {
        mine = pieces<SQUARE, W>(x, a.n);
        const i64 rest = a.n / W * W + threadIdx.x; // fewer than W elements are left
        if (blockIdx.x == 0 && rest < a.n) {
            const double d = wide(x[rest]);
            mine += SQUARE ? d * d : d;
        }
    } else {
        mine = pieces<SQUARE, 1>(x, a.n);
    }
    const double total = blockSum(mine, scratch);
    if (gridDim.x == 1)
        finish(a, total);
    else if (threadIdx.x == 0)
        a.part[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(256, 8) sum_f32(SumArgs a) { sum<false, float>(a); }
extern "C" __global__ void __launch_bounds__(256, 8) squares_f32(SumArgs a) { sum<true, float>(a); }
extern "C" __global__ void __launch_bounds__(256, 8) squares_bf16(SumArgs a) { sum<true, bf16>(a); }

// sum_parts adds the sums of n blocks up, in one block.
extern "C" __global__ void __launch_bounds__(256) sum_parts(SumArgs a) {
    __shared__ double scratch[32];
    double mine = 0;
    for (i64 i = threadIdx.x; i < a.n; i += blockDim.x) mine += a.part[i];
    finish(a, blockSum(mine, scratch));
}
