// Cross entropy over the vocabulary, and its gradient in place of the logits.
//
// Letters: N rows, V vocabulary.

struct CrossEntropy {
    float* loss;        // [N]
    void* logits;       // [N,V]
    const i32* targets; // [N]
    i32 v, grad, kept;  // kept: chunks of a row that shared memory holds
    float scale;
};

constexpr float lowest = -3.402823466e38f; // finite, for -Inf minus -Inf is NaN
constexpr float log2e = 1.44269504088896341f;

// power is e^(x-top), 0 for -Inf, for NaN and what is too large NaN.
__device__ __forceinline__ float power(float x, float top) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"((x - top) * log2e));
    return y;
}

// A softmax under way: the largest logit so far and the sum of e^(x-top). NaN is
// never the largest, but makes the sum NaN, and so does +Inf.
struct Softmax {
    float top = lowest, sum = 0;

    template <int W> __device__ __forceinline__ void add(const float (&x)[W]) {
        float most = x[0];
#pragma unroll
        for (int k = 1; k < W; k++) most = fmaxf(most, x[k]);
        if (most > top) {
            sum *= power(top, most);
            top = most;
        }
        float part = 0;
#pragma unroll
        for (int k = 0; k < W; k++) part += power(x[k], top);
        sum += part;
    }

    // The softmax of the whole block, the same bits in every thread.
    __device__ __forceinline__ void join() {
        __shared__ float tops[32], sums[32]; // of each warp
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        joinWarp();
        if (lane == 0) tops[warp] = top, sums[warp] = sum;
        __syncthreads();
        bool there = lane < blockDim.x / 32;
        top = there ? tops[lane] : lowest;
        sum = there ? sums[lane] : 0;
        joinWarp();
    }

    __device__ __forceinline__ void joinWarp() {
        float most = top;
#pragma unroll
        for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
        sum = warpSum(sum * power(top, most));
        top = most;
    }
};

// loss[n] = log(sum of e^logits[n]) - logits[n, target], 0 where the target is
// negative, NaN where it is V or more. With grad, logits[n] becomes
// scale*(softmax - onehot): zeros where the target is negative, NaN where the loss
// is. A block takes a row. It reads it once from memory: what shared memory does not
// keep for the gradient (a quarter of a row of 152k bf16 on sm_90) is little enough,
// over all blocks, to be found in the L2 cache again. So memory moves 2*N*V elements
// with grad, N*V without. A row need not begin at a multiple of 16 bytes, for V may be
// odd: the elements before the first such address and after the last are a thread's
// each, and between them lie chunks of 16 bytes.
template <class T> __device__ void crossEntropy(const CrossEntropy& p) {
    constexpr int W = 16 / sizeof(T);
    constexpr int ahead = 4; // chunks of a thread in flight
    typedef Vec<T, W> Chunk;
    extern __shared__ uint4 shared[];
    Chunk* kept = (Chunk*)shared; // chunk i is that of the thread which reads it
    int thread = threadIdx.x, threads = blockDim.x;
    T* x = (T*)p.logits + (i64)blockIdx.x * p.v;
    i32 target = p.targets[blockIdx.x];
    int first = min((int)(-(u64)x % 16 / sizeof(T)), p.v), chunks = (p.v - first) / W;
    Chunk* body = (Chunk*)(x + first);
    int own = thread < first ? thread : chunks * W + thread; // a single element, for
    bool single = own < p.v;                                 // the first few threads

    if (target < 0) {
        if (thread == 0) p.loss[blockIdx.x] = 0;
        if (!p.grad) return;
        for (int i = thread; i < chunks; i += threads) body[i] = Chunk{};
        if (single) x[own] = narrow<T>(0);
        return;
    }

    Softmax all;
    float element[1] = {};
    if (single) {
        element[0] = wide(x[own]);
        all.add(element);
    }
    for (int i = thread; i < chunks; i += ahead * threads) {
        Chunk chunk[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++)
            if (i + k * threads < chunks) chunk[k] = body[i + k * threads];
#pragma unroll
        for (int k = 0; k < ahead; k++) {
            if (i + k * threads >= chunks) break;
            if (i + k * threads < p.kept) kept[i + k * threads] = chunk[k];
            float e[W];
            unpack(e, chunk[k]);
            all.add(e);
        }
    }
    // Read before the barrier in join, after which it may be overwritten.
    float hit = target < p.v && thread == 0 ? wide(x[target]) : 0;
    all.join();
    float factor = p.scale / all.sum;
    if (target >= p.v) factor = hit = __int_as_float(0x7fffffff);
    if (thread == 0) p.loss[blockIdx.x] = (float)(log((double)all.sum) + all.top - hit);
    if (!p.grad) return;

    if (single) {
        float g = power(element[0], all.top) * factor;
        x[own] = narrow<T>(own == target ? g - p.scale : g);
    }
    // Backwards, for what is not kept was read last and is most likely still cached.
    for (int j = (chunks - 1) / threads; j >= 0; j--) {
        int i = j * threads + thread;
        if (i >= chunks) continue;
        Chunk chunk = i < p.kept ? kept[i] : body[i];
        float g[W];
        unpack(g, chunk);
#pragma unroll
        for (int k = 0; k < W; k++) g[k] = power(g[k], all.top) * factor;
        u32 hot = target - first - i * W;
        if (hot < W)
#pragma unroll
            for (int k = 0; k < W; k++) g[k] -= k == hot ? p.scale : 0;
        chunk.set(g);
        __stcs((uint4*)(body + i), (const uint4&)chunk); // leaves the cache to what will be read again
    }
}

extern "C" __global__ void __launch_bounds__(1024) cross_entropy_f32(const CrossEntropy p) { crossEntropy<float>(p); }
extern "C" __global__ void __launch_bounds__(1024) cross_entropy_bf16(const CrossEntropy p) { crossEntropy<bf16>(p); }
