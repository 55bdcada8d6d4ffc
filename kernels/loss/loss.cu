// Cross entropy over the vocabulary, and its gradient in place of the logits.
//
// Letters: N rows, V vocabulary.

struct CrossEntropy {
    float* loss;        // [N]
    void* logits;       // [N,V]
    const i32* targets; // [N]
    i32 n, v, grad;
    i32 kept; // chunks of a row that shared memory holds, 0 without grad
    float scale;
};

constexpr float highest = 3.402823466e38f, lowest = -highest;
constexpr float log2e = 1.44269504088896341f;

__device__ __forceinline__ float pow2(float x) { // 0 for -Inf
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// largest is the largest element of v that is not NaN, NaN where there is none.
__device__ __forceinline__ float largest(const Vec<float, 4>& v) {
    return fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
}
__device__ __forceinline__ float largest(const Vec<bf16, 8>& v) {
    u32 two = v.word[0]; // the largest of either half
#pragma unroll
    for (int i = 1; i < 4; i++) asm("max.bf16x2 %0, %0, %1;" : "+r"(two) : "r"(v.word[i]));
    return fmaxf(element<bf16>(two, 0), element<bf16>(two, 1));
}

// A softmax under way, in powers of 2: element x adds 2^(x*log2e - top) to sum. top is
// the largest x*log2e so far, rounded, but one number for all elements, so that its
// rounding is no error. NaN is never the largest, and makes the sum NaN, and so does
// +Inf. Where the largest element is beyond 1e9 either way, the rounding alone may make
// the sum 0 or infinite.
struct Softmax {
    float top = lowest, sum = 0;

    template <class T, int W> __device__ __forceinline__ void add(const Vec<T, W>& chunk) {
        raise(largest(chunk));
        float part = 0;
#pragma unroll
        for (int k = 0; k < W; k++) part += power(chunk[k]);
        sum += part;
    }
    __device__ __forceinline__ void add(float x) {
        raise(x);
        sum += power(x);
    }
    __device__ __forceinline__ void raise(float x) {
        float most = x * log2e;
        if (most > top) {
            sum *= pow2(top - most);
            top = most;
        }
    }
    __device__ __forceinline__ float power(float x) const { return pow2(fmaf(x, log2e, -top)); }

    // log is the natural logarithm of the sum of all e^x, less one x.
    __device__ __forceinline__ float logLess(float x) const {
        return (float)((log2((double)sum) + top - (double)x * log2e) / log2e);
    }

    // The softmax of the whole block, the same bits in every thread. Calls alternate
    // between odd and even: a warp may still read what the last call wrote.
    __device__ __forceinline__ void join(int odd) {
        __shared__ float tops[2][32], sums[2][32]; // of each warp
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        joinWarp();
        if (lane == 0) tops[odd][warp] = top, sums[odd][warp] = sum;
        __syncthreads();
        bool there = lane < blockDim.x / 32;
        top = there ? tops[odd][lane] : lowest;
        sum = there ? sums[odd][lane] : 0;
        joinWarp();
    }

    __device__ __forceinline__ void joinWarp() {
        float most = top;
#pragma unroll
        for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
        sum = warpSum(sum * pow2(top - most));
        top = most;
    }
};

// A row of logits as its block sees it: chunks of 16 bytes, which begin at the first
// address of a multiple of 16, and up to 14 elements before and behind them, which are
// a thread's each. Thread i has chunks i, i+blockDim.x, and so on.
template <class T> struct Row {
    static constexpr int W = 16 / sizeof(T);
    typedef Vec<T, W> Chunk;

    T* x;
    i32 target;
    int first, chunks; // chunk i begins at element first + i*W
    int held;          // chunks for shared memory: none where the row is not read

    __device__ __forceinline__ Row(const CrossEntropy& p, i64 n, i32 target) : target(target) {
        x = (T*)p.logits + n * p.v;
        first = min((int)(-(u64)x % 16 / sizeof(T)), p.v);
        chunks = (p.v - first) / W;
        held = target >= 0 ? min(p.kept, chunks) : 0;
    }
    __device__ __forceinline__ Chunk& chunk(int i) const { return *((Chunk*)(x + first) + i); }
    __device__ __forceinline__ int own() const { // at V or behind, where there is none
        return (int)threadIdx.x < first ? threadIdx.x : chunks * W + threadIdx.x;
    }
};

// targetOf is -1 behind the last row, for nothing there is read.
__device__ __forceinline__ i32 targetOf(const CrossEntropy& p, i64 n) { return n < p.n ? p.targets[n] : -1; }

// loss[n] = log(sum of e^logits[n]) - logits[n, target], 0 where the target is
// negative, NaN where it is V or more. With grad, logits[n] becomes
// scale*(softmax - onehot): zeros where the target is negative, NaN where the loss
// is: with a NaN or +Inf in the row, or a largest logit beyond 1e9 either way. Both may be
// off by some 1e-7, of 1 and of scale.
//
// A block takes row after row, as many blocks as run at a time. It reads a row once
// from memory: what shared memory does not keep for the gradient (a quarter of a row
// of 152k bf16 on sm_90) is little enough, over all blocks, to be found in the L2
// cache again. While it writes a gradient it fetches the next row into the place that
// becomes free, so that memory never waits for the exponentials. It moves 2*N*V
// elements with grad, N*V without.
template <class T, int threads> __device__ void crossEntropy(const CrossEntropy& p) {
    typedef typename Row<T>::Chunk Chunk;
    constexpr int W = Row<T>::W;
    constexpr int ahead = 4, freed = 2; // chunks of a thread in flight: of this row, of the next
    extern __shared__ uint4 shared[];
    Chunk* kept = (Chunk*)shared; // chunk i is that of the thread which reads it
    int thread = threadIdx.x, odd = 0;

    Row<T> row(p, blockIdx.x, targetOf(p, blockIdx.x));
#pragma unroll 4
    for (int i = thread; i < row.held; i += threads) kept[i] = row.chunk(i);

    for (i64 n = blockIdx.x; n < p.n; n += gridDim.x) {
        i32 nextTarget = targetOf(p, n + gridDim.x); // needed later
        bool masked = row.target < 0, outside = row.target >= p.v;
        // The thread's first chunk that is not kept.
        int rest = thread + (max(row.held - thread, 0) + threads - 1) / threads * threads;
        Softmax all;
        float factor = 0;
        if (masked) {
            if (thread == 0) p.loss[n] = 0;
        } else {
            // Read before the barrier in join, after which it may be overwritten.
            float hit = thread == 0 && !outside ? wide(row.x[row.target]) : 0;
            Chunk part[ahead];
            auto fetch = [&](int i) {
#pragma unroll
                for (int k = 0; k < ahead; k++)
                    if (i + k * threads < row.chunks) part[k] = row.chunk(i + k * threads);
            };
            float single;
            if (row.own() < p.v) single = wide(row.x[row.own()]);
            fetch(rest); // is on its way while the others are added
            for (int i = thread; i < row.held; i += threads) all.add(kept[i]);
            for (int i = rest; i < row.chunks;) {
#pragma unroll
                for (int k = 0; k < ahead; k++) {
                    if (i + k * threads >= row.chunks) break;
                    all.add(part[k]);
                }
                fetch(i += ahead * threads);
            }
            if (row.own() < p.v) all.add(single);
            all.join(odd);
            odd ^= 1;
            factor = p.scale / all.sum;
            if (outside || !(all.sum > 0 && all.sum <= highest)) factor = hit = __int_as_float(0x7fffffff);
            if (thread == 0) p.loss[n] = all.logLess(hit);
        }

        Row<T> next(p, n + gridDim.x, nextTarget);
        if (p.grad) {
            // The gradient of chunk i, which held c.
            auto put = [&](int i, const Chunk& c) {
                float g[W];
                unpack(g, c);
#pragma unroll
                for (int k = 0; k < W; k++) g[k] = all.power(g[k]) * factor;
                u32 hot = row.target - row.first - i * W;
                if (hot < W)
#pragma unroll
                    for (int k = 0; k < W; k++) g[k] -= k == hot ? p.scale : 0;
                Chunk out;
                out.set(g);
                __stcs((uint4*)&row.chunk(i), (const uint4&)out); // leaves the cache to what will be read again
            };
            if (masked)
                for (int i = thread; i < row.chunks; i += threads) row.chunk(i) = Chunk{};
            for (int i = masked ? row.chunks : rest; i < row.chunks; i += ahead * threads) {
                Chunk part[ahead];
#pragma unroll
                for (int k = 0; k < ahead; k++)
                    if (i + k * threads < row.chunks) part[k] = row.chunk(i + k * threads);
#pragma unroll
                for (int k = 0; k < ahead; k++)
                    if (i + k * threads < row.chunks) put(i + k * threads, part[k]);
            }
            for (int i = thread; i < max(row.held, next.held); i += freed * threads) {
                Chunk coming[freed];
#pragma unroll
                for (int k = 0; k < freed; k++)
                    if (i + k * threads < next.held) coming[k] = next.chunk(i + k * threads);
#pragma unroll
                for (int k = 0; k < freed; k++)
                    if (i + k * threads < row.held) put(i + k * threads, kept[i + k * threads]);
#pragma unroll
                for (int k = 0; k < freed; k++)
                    if (i + k * threads < next.held) kept[i + k * threads] = coming[k];
            }
            if (row.own() < p.v) {
                T& single = row.x[row.own()];
                float g = masked ? 0 : all.power(wide(single)) * factor;
                single = narrow<T>(row.own() == row.target ? g - p.scale : g);
            }
        }
        row = next;
    }
}

// cross_entropy_T_THREADS: 1024 threads a multiprocessor, in one block or several.
#define CROSS_ENTROPY(T, THREADS) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS) \
    cross_entropy_##T##_##THREADS(const CrossEntropy p) { crossEntropy<T, THREADS>(p); }
typedef float f32;
CROSS_ENTROPY(f32, 32) CROSS_ENTROPY(f32, 128) CROSS_ENTROPY(f32, 512) CROSS_ENTROPY(f32, 1024)
CROSS_ENTROPY(bf16, 32) CROSS_ENTROPY(bf16, 128) CROSS_ENTROPY(bf16, 512) CROSS_ENTROPY(bf16, 1024)
