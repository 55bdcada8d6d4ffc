// Attention of new tokens to a cache, for generating text: a sequence's T tokens from
// position pos on, whose keys and values join those of the pos tokens before. Any head
// size up to 128; f32 throughout, bf16 in memory.

struct Next {
  const bf16* qkv;      // [T,H+2K,D]
  bf16 *keys, *values;  // [P,K,D]
  bf16* o;              // [T,H,D]
  int T, H, K, D, pos;
  float scale;
};

// Copies the keys and values of qkv to rows pos.. of the cache.
//   grid ceil(2*T*K*D/256), 256 threads
extern "C" __global__ void __launch_bounds__(256) attention_append(const Next p) {
  const i64 row = (i64)p.K * p.D, i = (i64)blockIdx.x * 256 + threadIdx.x, t = i / (2 * row), at = i % (2 * row);
  if (t >= p.T) return;
  const bf16 x = p.qkv[t * (p.H + 2 * p.K) * p.D + (i64)p.H * p.D + at];
  if (at < row)
    p.keys[(p.pos + t) * row + at] = x;
  else
    p.values[(p.pos + t) * row + at - row] = x;
}

// o of one query head of one token a block. Its warps share out the keys, STEP at a time,
// and its lanes the columns. Each warp keeps a softmax of its own, in base 2; at the end
// they are joined in the order of the warps. No memory beyond the operands.
//   grid T*H, 256 threads
extern "C" __global__ void __launch_bounds__(256) attention_next(const Next p) {
  constexpr int WARPS = 8, COLS = 4, STEP = 4;
  __shared__ float part[WARPS][32 * COLS], tops[WARPS], sums[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int t = blockIdx.x / p.H, h = blockIdx.x % p.H, hk = h / (p.H / p.K), seen = p.pos + t + 1;
  const bf16* query = p.qkv + ((i64)t * (p.H + 2 * p.K) + h) * p.D;
  const bf16 *keys = p.keys + (i64)hk * p.D, *values = p.values + (i64)hk * p.D;
  const i64 row = (i64)p.K * p.D;

  float q[COLS], acc[COLS];
#pragma unroll
  for (int c = 0; c < COLS; c++) {
    const int d = lane + 32 * c;
    q[c] = d < p.D ? wide(query[d]) * p.scale * 1.4426950408889634f : 0.f;
    acc[c] = 0.f;
  }
  float top = -1e38f, sum = 0.f;  // finite: a warp without keys joins with weight 0
  for (int j0 = warp * STEP; j0 < seen; j0 += WARPS * STEP) {
    float s[STEP], v[STEP][COLS], above = top;
#pragma unroll
    for (int i = 0; i < STEP; i++) {
      const i64 at = min(j0 + i, seen - 1) * row;
      s[i] = 0.f;
#pragma unroll
      for (int c = 0; c < COLS; c++) {
        const int d = lane + 32 * c;
        const bool in = d < p.D;
        s[i] += in ? q[c] * wide(keys[at + d]) : 0.f;
        v[i][c] = in ? wide(values[at + d]) : 0.f;
      }
    }
#pragma unroll
    for (int i = 0; i < STEP; i++) {
      s[i] = warpSum(s[i]);
      if (j0 + i < seen) above = fmaxf(above, s[i]);
    }
    const float fade = exp2f(top - above);
    top = above;
    sum *= fade;
#pragma unroll
    for (int c = 0; c < COLS; c++) acc[c] *= fade;
#pragma unroll
    for (int i = 0; i < STEP; i++) {
      const float e = j0 + i < seen ? exp2f(s[i] - top) : 0.f;
      sum += e;
#pragma unroll
      for (int c = 0; c < COLS; c++) acc[c] += e * v[i][c];
    }
  }
#pragma unroll
  for (int c = 0; c < COLS; c++) part[warp][lane + 32 * c] = acc[c];
  if (lane == 0) tops[warp] = top, sums[warp] = sum;
  __syncthreads();

  if (threadIdx.x >= p.D) return;
  top = tops[0];
  for (int w = 1; w < WARPS; w++) top = fmaxf(top, tops[w]);
  float total = 0.f, x = 0.f;
  for (int w = 0; w < WARPS; w++) {
    const float weight = exp2f(tops[w] - top);
    total += weight * sums[w];
    x += weight * part[w][threadIdx.x];
  }
  p.o[((i64)t * p.H + h) * p.D + threadIdx.x] = narrow<bf16>(x / total);
}
