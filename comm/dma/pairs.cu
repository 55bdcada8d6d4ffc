// Arrays from one rank to another whose sizes differ from pair to pair: AllToAllV, Send
// and Recv. Each pair has channels of its own in each direction, and each channel a few
// slots on the receiver's GPU, a ring. A block of the sender fills slots, at most as many
// ahead as there are, and counts them there; the receiver's block of the same number
// empties them, and counts them at the sender. The counters go on from call to call, and
// both sides know how much a call moves.
//
// A grid is [send, receive][channels] blocks. Ranks take turns: in step k a rank sends to
// the k-th behind it and receives from the k-th before it. Of all that wait, those in the
// earliest step have their counterpart in that step too, so somebody always goes on.

// peer.cuh, elements.cuh and watch.cuh stand before this text.

enum {
    CHANNELS = 8, // as channels
    DEPTH = 4,    // as depth
};

struct Pairs {
    const char* src;
    char* dst;
    char* slots[RANKS]; // of each rank, as this GPU sees it: [RANKS senders][CHANNELS][DEPTH] of room
    u32* come[RANKS];   // the same: [RANKS senders][CHANNELS], slots filled
    u32* gone[RANKS];   // the same: [RANKS receivers][CHANNELS], slots emptied
    u32* sent;          // [RANKS receivers][CHANNELS], slots that this rank has filled
    u32* taken;         // [RANKS senders][CHANNELS], slots that this rank has emptied
    i64 sendAt[RANKS], sends[RANKS]; // bytes of src for each rank
    i64 recvAt[RANKS], recvs[RANKS]; // bytes of dst from each rank
    i64 room;           // of a slot, bytes
    Watch watch;
    int me, ranks, channels; // channels in use, at most CHANNELS
};

// Share is the packs of a channel among n.
struct Share {
    i64 from, to;
};
DEV Share share(const Pairs& x, i64 n, int channel) {
    const i64 each = (n + x.channels - 1) / x.channels, from = channel * each, to = from + each;
    return {from < n ? from : n, to < n ? to : n};
}

// reach waits, all threads of the block, until a counter has reached v.
DEV void reach(const Pairs& x, const u32* counter, u32 v, int rank) {
    if (threadIdx.x == 0)
        for (u32 turn = 1; (int)(told(counter) - v) < 0; turn++)
            if (quit(x.watch, rank, turn)) break;
    __syncthreads();
}

// turned says that the block has filled or emptied a slot.
DEV void turned(u32* counter, u32 v) {
    __syncthreads();
    if (threadIdx.x == 0) tell(counter, v);
}

DEV void send(const Pairs& x, int p, int channel) {
    const int pair = p * CHANNELS + channel, mine = x.me * CHANNELS + channel;
    const Share part = share(x, packs(x.sends[p]), channel);
    const char* from = x.src + x.sendAt[p];
    const i64 chunk = x.room / 16;
    u32 n = x.sent[pair];
    for (i64 at = part.from; at < part.to; at += chunk, n++) {
        reach(x, x.gone[x.me] + pair, n + 1 - DEPTH, p);
        char* to = x.slots[p] + ((i64)mine * DEPTH + n % DEPTH) * x.room;
        const i64 end = at + chunk < part.to ? at + chunk : part.to;
        for (i64 i = at + threadIdx.x; i < end; i += blockDim.x) *(Pack*)(to + 16 * (i - at)) = load(from + 16 * i, x.sends[p] - 16 * i);
        turned(x.come[p] + mine, n + 1);
    }
    __syncthreads(); // all have read the counter
    if (threadIdx.x == 0) x.sent[pair] = n;
}

DEV void receive(const Pairs& x, int r, int channel) {
    const int pair = r * CHANNELS + channel, mine = x.me * CHANNELS + channel;
    const Share part = share(x, packs(x.recvs[r]), channel);
    char* to = x.dst + x.recvAt[r];
    const i64 chunk = x.room / 16;
    u32 n = x.taken[pair];
    for (i64 at = part.from; at < part.to; at += chunk, n++) {
        reach(x, x.come[x.me] + pair, n + 1, r);
        const char* from = x.slots[x.me] + ((i64)pair * DEPTH + n % DEPTH) * x.room;
        const i64 end = at + chunk < part.to ? at + chunk : part.to;
        for (i64 i = at + threadIdx.x; i < end; i += blockDim.x) store(to + 16 * i, *(const Pack*)(from + 16 * (i - at)), x.recvs[r] - 16 * i);
        turned(x.gone[r] + mine, n + 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) x.taken[pair] = n;
}

KERNEL pairs(const __grid_constant__ Pairs x) {
    const int block = blockIdx.x, channel = block % x.channels;
    move(place(), x.dst + x.recvAt[x.me], x.src + x.sendAt[x.me], x.recvs[x.me]);
    for (int k = 1; k < x.ranks; k++) {
        if (block < x.channels)
            send(x, (x.me + k) % x.ranks, channel);
        else
            receive(x, (x.me + x.ranks - k) % x.ranks, channel);
    }
    end(x.watch);
}
