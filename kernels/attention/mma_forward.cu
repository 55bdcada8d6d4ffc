// o and lse by mma.sync. A block takes 128 query rows of one head, 4 warps of 32 rows,
// and goes through tiles of KEYS keys and values, loaded one tile ahead. Blocks with the
// most keys come first in the grid.
//   grid B*H*ceil(T/128), 128 threads, shared (128 + 4*KEYS)*D*2 bytes
//   KEYS    keys a tile
//   BLOCKS  blocks a multiprocessor that registers must allow

extern "C" __global__ void __launch_bounds__(128, BLOCKS) attention_forward_mma(const Forward p) {
  extern __shared__ __align__(1024) unsigned char smem[];
  constexpr int BR = 128, BC = KEYS, ST = BC / 8;
  const u32 sQ = smem_addr(smem), sK = sQ + BR * D * 2, sV = sK + 2 * BC * D * 2;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int gid = lane >> 2, tig = lane & 3;
  const int T = p.T, BH = p.B * p.H, nq = (T + BR - 1) / BR;
  const int qt = nq - 1 - (int)(blockIdx.x / BH), bh = blockIdx.x % BH;
  const int b = bh / p.H, h = bh % p.H, hk = h / (p.H / p.K);
  const int q0 = qt * BR, wq0 = q0 + warp * 32;
  const float sl2 = p.scale * LOG2E;

  const bf16* gk = p.k + b * p.sb + (i64)hk * HD;
  const bf16* gv = p.v + b * p.sb + (i64)hk * HD;
  const int jend = (min(q0 + BR, T) + BC - 1) / BC;
  int jbeg = 0, wlo = 0;
  int ds[4];
  if (DOCS) {
    const int* dp = p.docs + (i64)b * T;
    jbeg = dp[q0] / BC;
    wlo = dp[min(wq0, T - 1)];
#pragma unroll
    for (int i = 0; i < 4; i++) ds[i] = dp[min(wq0 + gid + i * 8, T - 1)];
  }

  load_tile<BR, 128>(sQ, p.q + b * p.sb + q0 * p.st + (i64)h * HD, p.st, T - q0);
  load_tile<BC, 128>(sK, gk + (i64)jbeg * BC * p.st, p.st, T - jbeg * BC);
  load_tile<BC, 128>(sV, gv + (i64)jbeg * BC * p.st, p.st, T - jbeg * BC);
  cp_commit();

  float acc[2][NT][4];
  float mx[2][2], sum[2][2];
  clear(acc);
#pragma unroll
  for (int mt = 0; mt < 2; mt++) {
    // Finite, so that a row all of whose scores are masked (-inf) gives zeros and no NaN.
    mx[mt][0] = mx[mt][1] = -1e38f;
    sum[mt][0] = sum[mt][1] = 0.f;
  }

  const u32 aQ = sQ + rows16(warp * 32), oK = cols16(), oV = rows16(0);

  for (int j = jbeg; j < jend; j++) {
    cp_wait_all();
    __syncthreads();
    const u32 buf = ((j - jbeg) & 1) * (BC * D * 2);
    if (j + 1 < jend) {
      const u32 nb = (BC * D * 2) - buf;
      load_tile<BC, 128>(sK + nb, gk + (i64)(j + 1) * BC * p.st, p.st, T - (j + 1) * BC);
      load_tile<BC, 128>(sV + nb, gv + (i64)(j + 1) * BC * p.st, p.st, T - (j + 1) * BC);
      cp_commit();
    }
    const int k0 = j * BC;
    if (k0 > wq0 + 31) continue;             // wholly above the diagonal for this warp
    if (DOCS && k0 + BC <= wlo) continue;    // wholly before the documents of this warp's rows

    float s[2][ST][4];
    clear(s);
    scores<BC>(s, aQ, sK + buf + oK);

    bool masked = k0 + BC - 1 > wq0;
    if (DOCS) masked = masked || k0 < p.docs[(i64)b * T + min(wq0 + 31, T - 1)];
    if (masked) {
#pragma unroll
      for (int mt = 0; mt < 2; mt++)
#pragma unroll
        for (int nt = 0; nt < ST; nt++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const int key = k0 + nt * 8 + tig * 2 + (e & 1);
            const int row = wq0 + mt * 16 + gid + (e >> 1) * 8;
            bool dead = key > row;
            if (DOCS) dead = dead || key < ds[mt * 2 + (e >> 1)];
            if (dead) s[mt][nt][e] = -__int_as_float(0x7f800000);
          }
    }

    // Online softmax. The running maximum is raised, and the accumulator rescaled, only
    // when some score of the warp outgrew it by RAISE_LOG2 binary orders.
    float nm[2][2];
    bool grow = false;
#pragma unroll
    for (int mt = 0; mt < 2; mt++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float m = fmaxf(s[mt][0][2 * r], s[mt][0][2 * r + 1]);
#pragma unroll
        for (int nt = 1; nt < ST; nt++) m = fmaxf(m, fmaxf(s[mt][nt][2 * r], s[mt][nt][2 * r + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        nm[mt][r] = m;
        grow = grow || (m - mx[mt][r]) * sl2 > RAISE_LOG2;
      }
    if (__any_sync(0xffffffffu, grow)) {
#pragma unroll
      for (int mt = 0; mt < 2; mt++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float m = fmaxf(mx[mt][r], nm[mt][r]);
          const float c = ex2((mx[mt][r] - m) * sl2);
          mx[mt][r] = m;
          sum[mt][r] *= c;
#pragma unroll
          for (int nt = 0; nt < NT; nt++) {
            acc[mt][nt][2 * r] *= c;
            acc[mt][nt][2 * r + 1] *= c;
          }
        }
    }
    float ms[2][2];
#pragma unroll
    for (int mt = 0; mt < 2; mt++) ms[mt][0] = mx[mt][0] * sl2, ms[mt][1] = mx[mt][1] * sl2;

#pragma unroll
    for (int kk = 0; kk < BC / 16; kk++) {
      u32 pa[2][4];
#pragma unroll
      for (int mt = 0; mt < 2; mt++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          float* x = s[mt][2 * kk + half];
#pragma unroll
          for (int e = 0; e < 4; e++) x[e] = ex2(fmaf(x[e], sl2, -ms[mt][e >> 1]));
          sum[mt][0] += x[0] + x[1];
          sum[mt][1] += x[2] + x[3];
          pa[mt][2 * half] = pack2(x[0], x[1]);
          pa[mt][2 * half + 1] = pack2(x[2], x[3]);
        }
      accumulate(acc, pa, sV + buf + oV, kk);
    }
  }

  float inv[2][2];
#pragma unroll
  for (int mt = 0; mt < 2; mt++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float l = sum[mt][r];
      l += __shfl_xor_sync(0xffffffffu, l, 1);
      l += __shfl_xor_sync(0xffffffffu, l, 2);
      inv[mt][r] = 1.f / l;
      const int row = wq0 + mt * 16 + gid + r * 8;
      if (tig == 0 && row < T) p.lse[((i64)b * p.H + h) * T + row] = mx[mt][r] * p.scale + logf(l);
    }
  cp_wait_all();
  __syncwarp();
  // The warp's own rows of Q serve as staging: no other warp reads them.
  store_rows(sQ + warp * 32 * 2 * D, acc, inv, p.o + b * p.osb + wq0 * p.ost + (i64)h * HD, p.ost, T - wq0);
}
