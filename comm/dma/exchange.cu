// Collectives of small arrays: every rank sends to every other at once, into memory that
// lies on the receiver's GPU, and makes of what it gets a sum, or lays it in its place.
//
// Calls are numbered. What belongs to one call lies in one of two halves of a rank's
// memory, by turns, and nobody asks for leave to write there: in each call every rank
// hears from every other, if only a token. So when a rank begins call n, all ranks have
// begun n-1 and ended n-2, and have read what lies in the half that n writes to. Nothing
// is ever reset: numbers only grow, and wrap around.
//
// A block waits for blocks of other GPUs that have its own number, and for no other. All
// ranks launch the same grid, small enough to be on a GPU as a whole.
//
// Two ways to know that data has come:
//
//   marked   Half of each 8 bytes is the call's number, half is data. There is no fence
//            and no flag behind it: one way over the link is all, for twice the bytes.
//   flagged  A block writes its packs and then a flag. All of the bytes are data.

// peer.cuh, elements.cuh and watch.cuh stand before this text.

enum {
    MARKED = 128 << 10, // as markedRoom: a rank's marked packs for another, bytes
};

struct Exchange {
    const char* src;
    char* dst;
    char* lines[RANKS]; // of each rank, as this GPU sees it: marked packs of this call's half
    char* slots[RANKS]; // the same for flagged ones
    u32* flags[RANKS];  // [2 steps][RANKS senders][BLOCKS]
    i64 sendAt[RANKS], sends[RANKS]; // bytes of src for each rank
    i64 recvAt[RANKS], recvs[RANKS]; // bytes of dst from each rank
    i64 room;           // of a slot, bytes
    Watch watch;
    int me, ranks, op;
};

DEV i64 atLeastOne(i64 n) { return n < 1 ? 1 : n; }

// --- marked ---

// Marked packs take two lines each.
DEV Pack* line(const Exchange& x, int rank, int from, i64 i) { return (Pack*)(x.lines[rank] + (i64)from * MARKED) + 2 * i; }

DEV void mark(const Exchange& x, Pack* at, Pack v) {
    const u64 n = (u64)x.watch.call << 32;
    put(at, n | (u32)v.lo, n | v.lo >> 32);
    put(at + 1, n | (u32)v.hi, n | v.hi >> 32);
}

// await returns what a rank has marked, or zeros once the call is to end.
DEV Pack await(const Exchange& x, int from, i64 i, bool& gone) {
    const Pack* at = line(x, x.me, from, i);
    for (u32 turn = 1;; turn++) {
        const Pack a = get(at), b = get(at + 1);
        if ((u32)(a.lo >> 32) == x.watch.call && (u32)(a.hi >> 32) == x.watch.call && (u32)(b.lo >> 32) == x.watch.call && (u32)(b.hi >> 32) == x.watch.call)
            return {(u64)(u32)a.lo | a.hi << 32, (u64)(u32)b.lo | b.hi << 32};
        gone = gone || quit(x.watch, from, turn);
        if (gone) return {0, 0};
    }
}

// sendMarked sends to all ranks. It also renews one more line for each, another one
// every time: no number stays in memory until it comes up again.
DEV void sendMarked(const Exchange& x, Place t) {
    for (int k = 1; k < x.ranks; k++) {
        const int p = (x.me + k) % x.ranks;
        const i64 n = atLeastOne(packs(x.sends[p])), renewed = x.watch.call / 2 % (MARKED / 32);
        for (i64 i = t.first; i < n; i += t.step) mark(x, line(x, p, x.me, i), load(x.src + x.sendAt[p] + 16 * i, x.sends[p] - 16 * i));
        if (t.first == 0 && renewed >= n) mark(x, line(x, p, x.me, renewed), {0, 0});
    }
}

// tokens hears the ranks that send nothing.
DEV void tokens(const Exchange& x, Place t, bool& gone) {
    if (t.first) return;
    for (int r = 0; r < x.ranks; r++)
        if (r != x.me && x.recvs[r] == 0) await(x, r, 0, gone);
}

template <class T>
DEV void sumMarked(const Exchange& x) {
    begin(x.watch);
    const Place t = place();
    bool gone = false;
    sendMarked(x, t);
    tokens(x, t, gone);
    const i64 bytes = x.recvs[x.me];
    for (i64 i = t.first; i < packs(bytes); i += t.step) {
        const Pack own = load(x.src + x.sendAt[x.me] + 16 * i, bytes - 16 * i);
        Elements<T> sum(x.me == 0 ? own : await(x, 0, i, gone));
        for (int r = 1; r < x.ranks; r++) sum.fold(Elements<T>(r == x.me ? own : await(x, r, i, gone)), x.op);
        store(x.dst + x.recvAt[x.me] + 16 * i, sum.pack(x.op, x.ranks), bytes - 16 * i);
    }
    end(x.watch);
}

// keep moves a rank's own part.
DEV void keep(const Exchange& x, Place t) { move(t, x.dst + x.recvAt[x.me], x.src + x.sendAt[x.me], x.recvs[x.me]); }

DEV void moveMarked(const Exchange& x) {
    begin(x.watch);
    const Place t = place();
    bool gone = false;
    sendMarked(x, t);
    keep(x, t);
    tokens(x, t, gone);
    for (int k = 1; k < x.ranks; k++) {
        const int r = (x.me + x.ranks - k) % x.ranks;
        for (i64 i = t.first; i < packs(x.recvs[r]); i += t.step)
            store(x.dst + x.recvAt[r] + 16 * i, await(x, r, i, gone), x.recvs[r] - 16 * i);
    }
    end(x.watch);
}

// --- flagged ---

DEV char* slot(const Exchange& x, int rank, int from, int step) { return x.slots[rank] + (step * x.ranks + from) * x.room; }

DEV void sendFlagged(const Exchange& x, Place t) {
    for (int k = 1; k < x.ranks; k++) {
        const int p = (x.me + k) % x.ranks;
        char* to = slot(x, p, x.me, SENT);
        for (i64 i = t.first; i < packs(x.sends[p]); i += t.step)
            *(Pack*)(to + 16 * i) = load(x.src + x.sendAt[p] + 16 * i, x.sends[p] - 16 * i);
    }
}

// sum is pack i of the sum of what this rank has and has been sent.
template <class T>
DEV Pack sum(const Exchange& x, i64 i, i64 bytes) {
    const Pack own = load(x.src + x.sendAt[x.me] + 16 * i, bytes - 16 * i);
    Elements<T> s(x.me == 0 ? own : *(const Pack*)(slot(x, x.me, 0, SENT) + 16 * i));
    for (int r = 1; r < x.ranks; r++) s.fold(Elements<T>(r == x.me ? own : *(const Pack*)(slot(x, x.me, r, SENT) + 16 * i)), x.op);
    return s.pack(x.op, x.ranks);
}

template <class T>
DEV void sumFlagged(const Exchange& x) {
    begin(x.watch);
    const Place t = place();
    sendFlagged(x, t);
    meet(x.flags, x.watch, x.me, x.ranks, SENT);
    const i64 bytes = x.recvs[x.me];
    for (i64 i = t.first; i < packs(bytes); i += t.step) store(x.dst + x.recvAt[x.me] + 16 * i, sum<T>(x, i, bytes), bytes - 16 * i);
    end(x.watch);
}

DEV void moveFlagged(const Exchange& x) {
    begin(x.watch);
    const Place t = place();
    sendFlagged(x, t);
    keep(x, t);
    meet(x.flags, x.watch, x.me, x.ranks, SENT);
    for (int k = 1; k < x.ranks; k++) {
        const int r = (x.me + x.ranks - k) % x.ranks;
        const char* from = slot(x, x.me, r, SENT);
        for (i64 i = t.first; i < packs(x.recvs[r]); i += t.step)
            store(x.dst + x.recvAt[r] + 16 * i, *(const Pack*)(from + 16 * i), x.recvs[r] - 16 * i);
    }
    end(x.watch);
}

// twoShot sums part p of the array on rank p, which sends the sum to all. A thread
// reads and writes the same packs of every part, so dst may be src. sends are the parts
// of src and dst alike.
template <class T>
DEV void twoShot(const Exchange& x) {
    begin(x.watch);
    const Place t = place();
    sendFlagged(x, t);
    meet(x.flags, x.watch, x.me, x.ranks, SENT);
    const i64 bytes = x.sends[x.me];
    for (i64 i = t.first; i < packs(bytes); i += t.step) {
        const Pack s = sum<T>(x, i, bytes);
        for (int k = 1; k < x.ranks; k++) *(Pack*)(slot(x, (x.me + k) % x.ranks, x.me, SUMMED) + 16 * i) = s;
        store(x.dst + x.sendAt[x.me] + 16 * i, s, bytes - 16 * i);
    }
    meet(x.flags, x.watch, x.me, x.ranks, SUMMED);
    for (int k = 1; k < x.ranks; k++) {
        const int r = (x.me + x.ranks - k) % x.ranks;
        const char* from = slot(x, x.me, r, SUMMED);
        for (i64 i = t.first; i < packs(x.sends[r]); i += t.step)
            store(x.dst + x.sendAt[r] + 16 * i, *(const Pack*)(from + 16 * i), x.sends[r] - 16 * i);
    }
    end(x.watch);
}

#define SUMS(NAME, T)                                                                 \
    KERNEL sum_marked_##NAME(const __grid_constant__ Exchange x) { sumMarked<T>(x); } \
    KERNEL sum_flagged_##NAME(const __grid_constant__ Exchange x) { sumFlagged<T>(x); }

SUMS(f32, float)
SUMS(f64, double)
SUMS(f16, f16)
SUMS(bf16, bf16)
SUMS(i32, i32)
SUMS(i64, i64)
SUMS(u8, u8)
KERNEL two_shot_f32(const __grid_constant__ Exchange x) { twoShot<float>(x); }
KERNEL two_shot_f16(const __grid_constant__ Exchange x) { twoShot<f16>(x); }
KERNEL two_shot_bf16(const __grid_constant__ Exchange x) { twoShot<bf16>(x); }
KERNEL move_marked(const __grid_constant__ Exchange x) { moveMarked(x); }
KERNEL move_flagged(const __grid_constant__ Exchange x) { moveFlagged(x); }
