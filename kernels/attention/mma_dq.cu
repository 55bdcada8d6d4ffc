// dQ by mma.sync. A block takes 128 query rows of one head, 4 warps of 32 rows, and goes
// through tiles of KEYS keys and values: S = Q K^T and dP = dO V^T again, dS = P (dP - delta),
// dQ += dS K. A kernel of its own, so that dQ needs neither atomics nor an f32 buffer.
//   grid B*H*ceil(T/128), 128 threads, shared (256 + 4*KEYS)*D*2 bytes
//   KEYS    keys a tile
//   BLOCKS  blocks a multiprocessor that registers must allow

extern "C" __global__ void __launch_bounds__(128, BLOCKS) attention_dq_mma(const Backward p) {
  extern __shared__ __align__(1024) unsigned char smem[];
  constexpr int BR = 128, BC = KEYS, ST = BC / 8;
  const u32 sQ = smem_addr(smem), sO = sQ + BR * D * 2, sK = sO + BR * D * 2, sV = sK + 2 * BC * D * 2;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int gid = lane >> 2, tig = lane & 3;
  const int BH = p.B * p.H, T = p.T, nq = (T + BR - 1) / BR;
  const int qt = nq - 1 - (int)(blockIdx.x / BH), bh = blockIdx.x % BH;
  const int b = bh / p.H, h = bh % p.H, hk = h / (p.H / p.K);
  const int q0 = qt * BR, wq0 = q0 + warp * 32;
  const float sl2 = p.scale * LOG2E;

  const bf16* gk = p.k + b * p.sb + (i64)hk * HD;
  const bf16* gv = p.v + b * p.sb + (i64)hk * HD;
  const int jend = (min(q0 + BR, T) + BC - 1) / BC;
  int jbeg = 0, wlo = 0, whi = 0;
  int ds[4];
  if (DOCS) {
    const int* dp = p.docs + (i64)b * T;
    jbeg = dp[q0] / BC;
    wlo = dp[min(wq0, T - 1)];
    whi = dp[min(wq0 + 31, T - 1)];
#pragma unroll
    for (int i = 0; i < 4; i++) ds[i] = dp[min(wq0 + gid + i * 8, T - 1)];
  }

  load_tile<BR, 128>(sQ, p.q + b * p.sb + q0 * p.st + (i64)h * HD, p.st, T - q0);
  load_tile<BR, 128>(sO, p.dout + b * p.osb + q0 * p.ost + (i64)h * HD, p.ost, T - q0);
  load_tile<BC, 128>(sK, gk + (i64)jbeg * BC * p.st, p.st, T - jbeg * BC);
  load_tile<BC, 128>(sV, gv + (i64)jbeg * BC * p.st, p.st, T - jbeg * BC);
  cp_commit();

  float acc[2][NT][4];
  float ls[2][2], de[2][2];
#pragma unroll
  for (int mt = 0; mt < 2; mt++) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = wq0 + mt * 16 + gid + r * 8;
      const i64 at = ((i64)b * p.H + h) * T + row;
      ls[mt][r] = row < T ? p.lse[at] * LOG2E : 0.f;
      de[mt][r] = row < T ? p.delta[at] : 0.f;
    }
  }
  clear(acc);

  const u32 oA = rows16(warp * 32), oB = cols16(), oT = rows16(0);
  const u32 aQ = sQ + oA, aO = sO + oA;

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
    if (k0 > wq0 + 31) continue;           // wholly above the diagonal for this warp
    if (DOCS && k0 + BC <= wlo) continue;  // wholly before the documents of this warp's rows

    float s[2][ST][4], g[2][ST][4];
    clear(s);
    clear(g);
    scores<BC>(s, aQ, sK + buf + oB);
    scores<BC>(g, aO, sV + buf + oB);
#pragma unroll
    for (int mt = 0; mt < 2; mt++)
#pragma unroll
      for (int nt = 0; nt < ST; nt++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[mt][nt][e] = ex2(fmaf(s[mt][nt][e], sl2, -ls[mt][e >> 1]));
    bool masked = k0 + BC - 1 > wq0;
    if (DOCS) masked = masked || k0 < whi;
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
            if (dead) s[mt][nt][e] = 0.f;
          }
    }
#pragma unroll
    for (int kk = 0; kk < BC / 16; kk++) {
      u32 wa[2][4];
#pragma unroll
      for (int mt = 0; mt < 2; mt++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const float* x = s[mt][2 * kk + half];
          const float* y = g[mt][2 * kk + half];
          wa[mt][2 * half] = pack2(x[0] * (y[0] - de[mt][0]), x[1] * (y[1] - de[mt][0]));
          wa[mt][2 * half + 1] = pack2(x[2] * (y[2] - de[mt][1]), x[3] * (y[3] - de[mt][1]));
        }
      accumulate(acc, wa, sK + buf + oT, kk);
    }
  }
  cp_wait_all();
  __syncwarp();
  const float mul[2][2] = {{p.scale, p.scale}, {p.scale, p.scale}};
  // The warp's own rows of Q serve as staging: no other warp reads them.
  store_rows(sQ + warp * 32 * 2 * D, acc, mul, p.dq + b * p.sb + wq0 * p.st + (i64)h * HD, p.st, T - wq0);
}
