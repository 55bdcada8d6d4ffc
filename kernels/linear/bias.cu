// The gradient of a bias: the column sums of dy[N,O] bf16, in f32, in a fixed order.
//
// Two steps, for one block a column tile could not fill the GPU: each block adds up
// some rows of a tile, then the partial sums are added in their order. All of dy is
// read once; the partial sums are a hundredth of it or less, and stay in the L2.

constexpr int W = 8;              // columns of a thread: 16 bytes
constexpr int LANES = 16;         // threads side by side: 256 bytes of each row
constexpr int GROUPS = 16;        // rows that a block reads at once
constexpr int TILE = W * LANES;   // columns of a block
constexpr int ROW = TILE + LANES; // of shared memory: two groups of a warp in different banks

struct ColumnSums {
    const bf16* dy;  // [N,O]
    float* partials; // [parts,O]
    i64 n, o;
    i64 rows;        // of dy to a part
    i32 wide;        // rows begin at multiples of 16 bytes, and O is one of 8
};

__device__ __forceinline__ void addTo(float (&sum)[W], const Vec<bf16, W>& v) {
    float x[W];
    unpack(x, v);
#pragma unroll
    for (int i = 0; i < W; i++) sum[i] += x[i];
}

// Block (x, y) writes part y of columns 128x to 128x+127. Four loads of 16 bytes are
// in flight a thread, which is what it takes to keep the memory busy.
extern "C" __global__ void __launch_bounds__(LANES * GROUPS, 6) bias_partials(const ColumnSums p) {
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const i64 column = (i64)blockIdx.x * TILE + lane * W;
    const i64 from = blockIdx.y * p.rows, to = from + p.rows < p.n ? from + p.rows : p.n;
    const bf16* at = p.dy + column;
    float sum[W] = {};
    i64 r = from + group;
    if (!p.wide) {
        for (; r < to; r += GROUPS)
#pragma unroll
            for (int i = 0; i < W; i++)
                if (column + i < p.o) sum[i] += wide(at[r * p.o + i]);
    } else if (column < p.o) {
        constexpr int AHEAD = 4;
        for (; r + (AHEAD - 1) * GROUPS < to; r += AHEAD * GROUPS) {
            Vec<bf16, W> v[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; a++) v[a] = fetch<W>(at + (r + a * GROUPS) * p.o);
#pragma unroll
            for (int a = 0; a < AHEAD; a++) addTo(sum, v[a]);
        }
        for (; r < to; r += GROUPS) addTo(sum, fetch<W>(at + r * p.o));
    }
    __shared__ float shared[GROUPS][ROW];
#pragma unroll
    for (int i = 0; i < W; i++) shared[group][i * LANES + lane] = sum[i];
    __syncthreads();
    const int c = threadIdx.x;
    const i64 out = (i64)blockIdx.x * TILE + c;
    if (c >= TILE || out >= p.o) return;
    float total = 0;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) total += shared[g][c % W * LANES + c / W];
    p.partials[blockIdx.y * p.o + out] = total;
}

struct Finish {
    const float* partials; // [parts,O]
    void* db;              // [O], f32 or bf16
    i64 o;
    i32 parts;
    i32 f32;
    i32 add; // to what db holds
    i32 unused;
};

// A block writes 32 columns of db: eight threads a column add up every eighth part.
extern "C" __global__ void __launch_bounds__(256) bias_sums(const Finish p) {
    constexpr int COLUMNS = 32, THREADS = 8;
    const int c = threadIdx.x % COLUMNS, t = threadIdx.x / COLUMNS;
    const i64 column = (i64)blockIdx.x * COLUMNS + c;
    float sum = 0;
    if (column < p.o) {
#pragma unroll 4
        for (int i = t; i < p.parts; i += THREADS) sum += p.partials[i * p.o + column];
    }
    __shared__ float shared[THREADS][COLUMNS];
    shared[t][c] = sum;
    __syncthreads();
    if (t != 0 || column >= p.o) return;
    float total = 0;
#pragma unroll
    for (int i = 0; i < THREADS; i++) total += shared[i][c];
    if (p.f32) {
        float* db = (float*)p.db + column;
        *db = p.add ? *db + total : total;
    } else {
        bf16* db = (bf16*)p.db + column;
        *db = narrow<bf16>(p.add ? wide(*db) + total : total);
    }
}
