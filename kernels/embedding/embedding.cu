// The table look-up, learned positions, and their gradients. Everything here moves
// memory and adds: the limit is each byte read once and written once.
//
// Letters: N rows, V entries of the table, C channels, B sequences, T and P positions.

typedef float f32;
constexpr int warps = 8; // of every block

struct Embed {
    void* y;           // [N,C]
    const void* table; // [V,C]
    const i32* ids;    // [N]
    i64 n;
    i32 v, units; // of table; a row in units of U
};

// y[n] = table[ids[n]], of any element type; U is the widest word that divides a
// row. A warp copies a row, four words a lane in flight. An id outside the table
// gives a row of NaN (all bits set), so that it shows in the loss.
template <class U> __device__ void embed(const Embed& p) {
    i64 row = (i64)blockIdx.x * warps + threadIdx.x / 32;
    if (row >= p.n) return;
    i32 id = p.ids[row];
    U* y = (U*)p.y + row * p.units;
    bool inside = (u32)id < (u32)p.v;
    const U* x = (const U*)p.table + (inside ? id : 0) * (i64)p.units;
    for (int i = threadIdx.x % 32; i < p.units; i += 4 * 32) {
        U word[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (inside && i + 32 * k < p.units) word[k] = x[i + 32 * k];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (!inside) memset(&word[k], 0xff, sizeof(U));
            if (i + 32 * k < p.units) y[i + 32 * k] = word[k];
        }
    }
}

struct Order {
    i32* row;       // [N]: the rows, sorted by id, those of one id in their order
    i32* key;       // [N]: the id of each
    const i32* ids; // [N]
    i32 n, v;
};

// less is 1 where a < b, else 0, for numbers of one sign: two instructions.
__device__ __forceinline__ u32 less(i32 a, i32 b) { return (u32)(a - b) >> 31; }

// Sorts the rows by id: a row's place is the number of rows that come before it.
// A block places 32 rows, a lane of each warp one; its warps share out the rows
// that are counted, which lie in shared memory, a tile at a time. N*N comparisons
// of integers, for N = 16384 less time than the sums take: no atomics, no table of
// V counters to clear, and the same order every time. Ids outside the table come
// last, as V.
extern "C" __global__ void __launch_bounds__(32 * warps) embed_order(const Order p) {
    constexpr int share = 256; // of a tile, a warp's
    __shared__ __align__(16) i32 tile[warps * share];
    __shared__ i32 counts[warps][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int first = blockIdx.x * 32, own = first + lane;
    auto key = [&p](int i) {
        if (i >= p.n) return 0x7ffffffe; // behind every row
        i32 id = p.ids[i];
        return (u32)id < (u32)p.v ? id : p.v;
    };
    i32 id = key(own), count = 0;
    for (int base = 0; base < p.n; base += warps * share) {
        __syncthreads(); // the last tile has been counted
        for (int i = threadIdx.x; i < warps * share; i += 32 * warps) tile[i] = key(base + i);
        __syncthreads();
        int at = base + warp * share;
        const int4* part = (const int4*)(tile + warp * share);
        // Rows before this block's count where their id is at most ours, rows after
        // it where it is less.
        if (at + share <= first || at >= first + 32) {
            i32 bound = at < first ? id + 1 : id;
#pragma unroll 8
            for (int i = 0; i < share / 4; i++) {
                int4 k = part[i];
                count += less(k.x, bound) + less(k.y, bound) + less(k.z, bound) + less(k.w, bound);
            }
        } else {
#pragma unroll 1
            for (int i = 0; i < share; i++) {
                i32 k = tile[warp * share + i];
                count += k < id || (k == id && at + i < own);
            }
        }
    }
    counts[warp][lane] = count;
    __syncthreads();
    if (warp != 0 || own >= p.n) return;
    for (int w = 1; w < warps; w++) count += counts[w][lane];
    p.row[count] = own;
    p.key[count] = id;
}

struct EmbedBackward {
    void* dtable;   // [V,C]
    const void* dy; // [N,C]
    const i32 *row, *key;
    i32 n, v, c, add;
};

// Adds n <= R rows to sum, one after the other, all of them in flight at once: the
// rows that lanes j, j+1, ... name as mine.
template <int R, class Y, int W>
__device__ __forceinline__ void addRows(float (&sum)[W], const Y* dy, i32 mine, int j, int n, int c, bool active) {
    Vec<Y, W> part[R];
#pragma unroll
    for (int k = 0; k < R; k++) {
        i64 row = __shfl_sync(0xffffffffu, mine, j + k);
        if (k < n && active) part[k] = fetch<W>(dy + row * c);
    }
#pragma unroll
    for (int k = 0; k < R; k++) {
        if (k >= n) break;
        float x[W];
        unpack(x, part[k]);
#pragma unroll
        for (int i = 0; i < W; i++) sum[i] += x[i];
    }
}

// dtable[id] (+)= the sum of dy's rows with that id, in their order, in f32; other
// rows stay. A warp takes a place of the sorted list and 32*W columns, and has work
// where a new id begins there. Every row of dy is read once; where an id has many, a
// warp waits for memory once in 16 (f32: in 4). A lane takes 8 bytes of bf16 (W = 4) and not 16,
// for then twice as many warps work on such an id.
template <class D, class Y, int W> __device__ void embedBackward(const EmbedBackward& p) {
    constexpr int batch = W * sizeof(Y) < 16 ? 16 : 4; // of rows, without spilling registers
    int lane = threadIdx.x % 32;
    int place = blockIdx.x * warps + threadIdx.x / 32;
    if (place >= p.n) return;
    i32 id = p.key[place];
    if (id >= p.v || (place > 0 && p.key[place - 1] == id)) return;
    int column = (blockIdx.y * 32 + lane) * W;
    bool active = column < p.c; // and so are the W columns: W divides C
    D* out = (D*)p.dtable + (i64)id * p.c + column;
    const Y* dy = (const Y*)p.dy + column;
    float sum[W] = {};
    if (p.add && active) read(sum, out);
    for (int count = 32; count == 32; place += 32) {
        bool same = place + lane < p.n && p.key[place + lane] == id;
        i32 mine = same ? p.row[place + lane] : 0;
        count = __popc(__ballot_sync(0xffffffffu, same)); // the list is sorted: the first lanes
        int j = 0;
#pragma unroll 1
        for (; j + batch <= count; j += batch) addRows<batch>(sum, dy, mine, j, batch, p.c, active);
#pragma unroll 1
        for (; j < count; j += 4) addRows<4>(sum, dy, mine, j, count - j, p.c, active);
    }
    if (active) write(out, sum);
}

struct Positions {
    void* y;           // [B,T,C]
    const void* table; // [P,C]
    i64 rows;          // B*T
    i32 t, c, pos;
};

// y[b,t] += table[pos+t]. A warp takes a row; the table's rows come from the L2 cache
// for all b but one.
template <class T, int W> __device__ void positions(const Positions& p) {
    i64 row = (i64)blockIdx.x * warps + threadIdx.x / 32;
    if (row >= p.rows) return;
    T* y = (T*)p.y + row * p.c;
    const T* x = (const T*)p.table + (p.pos + row % p.t) * p.c;
    for (int i = threadIdx.x % 32 * W; i < p.c; i += 32 * W) {
        float a[W], b[W];
        read(a, y + i);
        read(b, x + i);
#pragma unroll
        for (int k = 0; k < W; k++) a[k] += b[k];
        write(y + i, a);
    }
}

struct PositionsBackward {
    void* dtable;   // [P,C]
    const void* dy; // [B,T,C]
    i64 words;      // P*C/W
    i32 b, t, c, add;
};

// dtable[t] (+)= the sum of dy[b,t] over b, in order, in f32; without add the rows
// from T on are cleared. A thread takes W columns of a row of the table, and has
// eight sequences in flight.
template <class D, class Y, int W> __device__ void positionsBackward(const PositionsBackward& p) {
    i64 word = (i64)blockIdx.x * (32 * warps) + threadIdx.x;
    if (word >= p.words) return;
    D* out = (D*)p.dtable + word * W;
    int b = word * W / p.c < p.t ? p.b : 0;
    if (b == 0 && p.add) return;
    i64 step = (i64)p.t * p.c;
    const Y* dy = (const Y*)p.dy + word * W; // row t of the first sequence
    float sum[W] = {};
    if (p.add) read(sum, out);
    for (int j = 0; j < b; j += 8) {
        Vec<Y, W> part[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (j + k < b) part[k] = fetch<W>(dy + (j + k) * step);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float x[W];
            unpack(x, part[k]);
            if (j + k < b)
#pragma unroll
                for (int i = 0; i < W; i++) sum[i] += x[i];
        }
    }
    write(out, sum);
}

// NAME_D_Y_W: the element types of a gradient and of what it is made from, and the
// columns of a thread: 1 where the wider W does not divide C or an address.
#define KERNEL(name, P, f, ...) \
    extern "C" __global__ void __launch_bounds__(32 * warps) name(const P p) { f<__VA_ARGS__>(p); }
#define POSITIONS(T, W) KERNEL(positions_##T##_##W, Positions, positions, T, W)
#define EMBED_BACKWARD(D, Y, W) \
    extern "C" __global__ void __launch_bounds__(32 * warps, 4) embed_backward_##D##_##Y##_##W(const EmbedBackward p) { embedBackward<D, Y, W>(p); }
#define POSITIONS_BACKWARD(D, Y, W) KERNEL(positions_backward_##D##_##Y##_##W, PositionsBackward, positionsBackward, D, Y, W)
#define BACKWARD(D, Y) \
    EMBED_BACKWARD(D, Y, 1) EMBED_BACKWARD(D, Y, 4) POSITIONS_BACKWARD(D, Y, 1) POSITIONS_BACKWARD(D, Y, 8)

KERNEL(embed_16, Embed, embed, uint4)
KERNEL(embed_2, Embed, embed, u16)
POSITIONS(f32, 1) POSITIONS(f32, 8) POSITIONS(bf16, 1) POSITIONS(bf16, 8)
BACKWARD(f32, f32) BACKWARD(f32, bf16) BACKWARD(bf16, bf16)
