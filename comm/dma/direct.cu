// Sums of arrays that every GPU reaches, at the same place of each rank's memory: nothing
// is copied on the way. Rank p reads part p of all arrays, adds it up, and writes the sum
// to all. A block waits for its like before it reads, so that the arrays are there, and
// when it is through, so that nobody reads or writes an array any more when its rank goes
// on. Calls are numbered and launched as those of exchange.cu, whose flags they use.

// exchange.cu and what stands before it stand before this text.

struct Direct {
    const char* src[RANKS]; // of each rank, as this GPU sees it: the part of this rank
    char* dst[RANKS];       // the same; of this rank alone where it alone gets the sum
    u32* flags[RANKS];
    i64 bytes;
    Watch watch;
    int me, ranks, op, all; // all: every rank gets the sum
};

// UNROLL packs of a thread are on their way at a time.
enum { UNROLL = 4 };

template <class T>
DEV void direct(const Direct& x) {
    begin(x.watch);
    const Place t = place();
    meet(x.flags, x.watch, x.me, x.ranks, SENT);
    const i64 whole = x.bytes / 16;
    for (i64 i = t.first; i < whole; i += UNROLL * t.step) {
        Pack v[UNROLL] = {}, s[UNROLL] = {};
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * t.step < whole) s[u] = *(const Pack*)(x.src[0] + 16 * (i + u * t.step));
        Elements<T> sum[UNROLL] = {Elements<T>(s[0]), Elements<T>(s[1]), Elements<T>(s[2]), Elements<T>(s[3])};
        for (int r = 1; r < x.ranks; r++) {
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (i + u * t.step < whole) v[u] = *(const Pack*)(x.src[r] + 16 * (i + u * t.step));
#pragma unroll
            for (int u = 0; u < UNROLL; u++) sum[u].fold(Elements<T>(v[u]), x.op);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (i + u * t.step >= whole) break;
            const Pack out = sum[u].pack(x.op, x.ranks);
            for (int k = 0; k < x.ranks; k++) {
                const int r = (x.me + k) % x.ranks;
                if (k == 0 || x.all) store(x.dst[r] + 16 * (i + u * t.step), out, 16);
            }
        }
    }
    const i64 rest = x.bytes - 16 * whole;
    if (rest && t.first == 0) {
        Elements<T> sum(load(x.src[0] + 16 * whole, rest));
        for (int r = 1; r < x.ranks; r++) sum.fold(Elements<T>(load(x.src[r] + 16 * whole, rest)), x.op);
        for (int r = 0; r < x.ranks; r++)
            if (r == x.me || x.all) store(x.dst[r] + 16 * whole, sum.pack(x.op, x.ranks), rest);
    }
    meet(x.flags, x.watch, x.me, x.ranks, SUMMED);
    end(x.watch);
}

KERNEL direct_f32(const __grid_constant__ Direct x) { direct<float>(x); }
KERNEL direct_f16(const __grid_constant__ Direct x) { direct<f16>(x); }
KERNEL direct_bf16(const __grid_constant__ Direct x) { direct<bf16>(x); }
