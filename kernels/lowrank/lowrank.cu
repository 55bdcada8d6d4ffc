// Factors along the diagonal of a matrix. They are small: a thread has one element.

struct BlockArgs {
    void* y;
    const void* x;
    i64 n;              // elements of y
    i32 r;              // R
    i32 blocks;         // G
    i32 from[4], to[4]; // each factor's rows of the matrix, ascending
    float scale;
    i32 add;
};

// spread: y[O,G*R] is scale times x[M,R] where a factor is, 0 elsewhere.
extern "C" __global__ void __launch_bounds__(256) spread(BlockArgs op) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= op.n) return;
    const i32 width = op.blocks * op.r;
    const i64 row = i / width;
    const i32 column = (i32)(i - row * width), mine = column / op.r;
    float v = 0;
    i64 first = 0; // of the factor's rows among all
#pragma unroll
    for (i32 g = 0; g < 4; g++) {
        if (g == mine && row >= op.from[g] && row < op.to[g])
            v = op.scale * wide(static_cast<const bf16*>(op.x)[(first + row - op.from[g]) * op.r + column % op.r]);
        first += op.to[g] - op.from[g];
    }
    static_cast<bf16*>(op.y)[i] = narrow<bf16>(v);
}

// collect: y[M,R] (+)= scale times the factors' places in x[O,G*R].
template <class T> __device__ __forceinline__ void collect(const BlockArgs& op) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= op.n) return;
    const i64 row = i / op.r;
    const i32 column = (i32)(i - row * op.r), width = op.blocks * op.r;
    float v = 0;
    i64 first = 0;
#pragma unroll
    for (i32 g = 0; g < 4; g++) {
        const i64 rows = op.to[g] - op.from[g];
        if (row >= first && row < first + rows)
            v = op.scale * static_cast<const float*>(op.x)[(row - first + op.from[g]) * width + g * op.r + column];
        first += rows;
    }
    T* y = static_cast<T*>(op.y) + i;
    if (op.add) v += wide(*y);
    *y = narrow<T>(v);
}
extern "C" __global__ void __launch_bounds__(256) collect_f32(BlockArgs op) { collect<float>(op); }
extern "C" __global__ void __launch_bounds__(256) collect_bf16(BlockArgs op) { collect<bf16>(op); }
