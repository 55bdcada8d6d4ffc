// What kernels between GPUs have in common: threads, packs, waits and their end.

enum {
    RANKS = 8,      // as MaxRanks
    BLOCKS = 128,   // as maxBlocks
    STAMPS = 4096,  // as stamps
    LOOK = 1 << 12, // polls between two looks at the host's word
};

// Watch is what ends a kernel, and who is told how far it is.
struct Watch {
    const u32* stop; // of the host: not zero where calls are to end
    u64* behind;     // of the host: for whom the kernel waits
    u32* ended;      // of this rank: the blocks that have ended, of all its kernels of this kind
    u64* stamps;     // of the host: when this call began, and STAMPS words further when it ended; or null
    u32 call;
    u32 last;        // what ended is when the call's blocks have
};

// stamp is a time in the upper bits, so that it and the call's number arrive together.
DEV u64 stamp(const Watch& w) { return now() << 16 | (w.call & 0xffff); }

// begin says that the call has begun.
DEV void begin(const Watch& w) {
    if (w.stamps && blockIdx.x == 0 && threadIdx.x == 0) note(w.stamps, stamp(w));
}

// quit tells whether to give up the wait for a rank. It seldom asks the host, whose
// memory is far.
DEV bool quit(const Watch& w, int rank, u32 turn) {
    if (turn % LOOK) return false;
    note(w.behind, (u64)w.call << 32 | (u64)(rank + 1));
    return look(w.stop) != 0;
}

// end counts the block as through. The call's last one says that the call is, whose
// results are there for whoever reads that.
DEV void end(const Watch& w) {
    __syncthreads();
    if (threadIdx.x == 0 && count(w.ended) + 1 == w.last && w.stamps) publish(w.stamps + STAMPS, stamp(w));
}

// The steps of a call, by their flags: parts that are sent, or may be read; sums that are.
enum { SENT, SUMMED };

// meet tells all ranks that this block has done a step, and waits until theirs have. It
// is of all threads. flags is each rank's, [2 steps][RANKS senders][BLOCKS].
DEV void meet(u32* const* flags, const Watch& w, int me, int ranks, int step) {
    __syncthreads();
    const int r = threadIdx.x;
    if (r < ranks && r != me) {
        tell(flags[r] + (step * RANKS + me) * BLOCKS + blockIdx.x, w.call);
        for (u32 turn = 1; (int)(told(flags[me] + (step * RANKS + r) * BLOCKS + blockIdx.x) - w.call) < 0; turn++)
            if (quit(w, r, turn)) break;
    }
    __syncthreads();
}

DEV i64 packs(i64 bytes) { return (bytes + 15) / 16; }

// Place is a thread's among those of the grid.
struct Place {
    i64 first, step;
};
DEV Place place() { return {(i64)blockIdx.x * blockDim.x + threadIdx.x, (i64)gridDim.x * blockDim.x}; }

// move copies n bytes, from any address to any.
DEV void move(Place t, char* to, const char* from, i64 n) {
    if (to == from) return;
    for (i64 i = t.first; i < packs(n); i += t.step) store(to + 16 * i, load(from + 16 * i, n - 16 * i), n - 16 * i);
}

#define KERNEL extern "C" __global__ void __launch_bounds__(512, 1)
