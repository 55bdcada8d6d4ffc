// Dropout: each byte is read and written once, and two elements share one random
// number of 64 bits.

struct DropoutArgs {
    bf16* y;       // [N,I], may be x where add is false
    const bf16* x; // [N,I]
    i64 n;
    u64 key, row; // of the numbers; row is the first row's
    i32 width;    // I
    u32 below;    // a draw below it drops its element
    float scale;  // of the others
    i32 add;
    i32 wide; // I is a multiple of 8, both addresses are multiples of 16 bytes
};

// draw is element i of the stream that key names: SplitMix64 with random access.
__device__ __forceinline__ u64 draw(u64 key, u64 i) {
    u64 z = key + 0x9e3779b97f4a7c15ull * (i + 1);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

// dropped is what becomes of channels i and i+1 of a row.
__device__ __forceinline__ void dropped(const DropoutArgs& op, u64 stream, u32 i, float& a, float& b) {
    const u64 bits = draw(stream, i / 2);
    a = (u32)(bits >> 32) < op.below ? 0.0f : a * op.scale;
    b = (u32)bits < op.below ? 0.0f : b * op.scale;
}

__device__ __forceinline__ void octet(const DropoutArgs& op, i64 row, u32 i) {
    float v[8];
    read(v, op.x + row * op.width + i);
    const u64 stream = draw(op.key, op.row + row);
#pragma unroll
    for (int j = 0; j < 8; j += 2) dropped(op, stream, i + j, v[j], v[j + 1]);
    bf16* y = op.y + row * op.width + i;
    if (op.add) {
        float sum[8];
        read(sum, y);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] += sum[j];
    }
    write(y, v);
}

__device__ __forceinline__ void couple(const DropoutArgs& op, i64 row, u32 i) {
    const bool two = i + 1 < op.width;
    const i64 at = row * op.width + i;
    float a = wide(op.x[at]), b = two ? wide(op.x[at + 1]) : 0.0f;
    dropped(op, draw(op.key, op.row + row), i, a, b);
    if (op.add) {
        a += wide(op.y[at]);
        if (two) b += wide(op.y[at + 1]);
    }
    op.y[at] = narrow<bf16>(a);
    if (two) op.y[at + 1] = narrow<bf16>(b);
}

// dropout: a thread has 8 channels of a row, or 2. Only the block's first piece is
// divided in 64 bits.
extern "C" __global__ void __launch_bounds__(256) dropout(DropoutArgs op) {
    const u32 each = op.wide ? 8 : 2, pieces = (op.width + each - 1) / each; // of a row
    const i64 first = (i64)blockIdx.x * blockDim.x, row = first / pieces;
    const u32 piece = (u32)(first - row * pieces) + threadIdx.x;
    const i64 r = row + piece / pieces;
    if (r >= op.n) return;
    if (op.wide)
        octet(op, r, piece % pieces * 8);
    else
        couple(op, r, piece % pieces * 2);
}
