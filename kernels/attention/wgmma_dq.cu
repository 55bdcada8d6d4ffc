// dQ by wgmma. A warpgroup owns 64 query rows of one head: S = Q K^T and dP = dO V^T again,
// dS = P (dP - delta), dQ += dS K. A kernel of its own, so that dQ needs neither atomics
// nor an f32 buffer. Blocks stay and take items (see Item); with documents each takes one.
//   grid min(multiprocessors, items), items = B*H*ceil(T/(64*GROUPS)); with documents: items
//   128*(GROUPS+1) threads, shared (384*GROUPS + 4*STAGES*KEYS)*D + 16 + 16*STAGES bytes
//   GROUPS  consumer warpgroups
//   KEYS    keys a tile
//   STAGES  tiles of keys and values in flight

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
    attention_dq_wgmma(const __grid_constant__ TMap qkv, const __grid_constant__ TMap dout, const Backward p) {
  extern __shared__ __align__(1024) unsigned char smem[];
  constexpr int NWG = GROUPS, NS = STAGES, BC = KEYS, BR = 64 * NWG, ST = BC / 8;
  constexpr u32 TILE = BC * D * 2;
  const u32 sQ = smem_addr(smem), sO = sQ + BR * D * 2, sK = sO + BR * D * 2;  // NS x (K, V)
  const u32 sW = sK + NS * 2 * TILE, bars = sW + BR * D * 2;
  const u32 fQ = bars, eQ = bars + 8, fK = bars + 16, eK = fK + 8 * NS;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wg = threadIdx.x >> 7;
  const int T = p.T;
  if (threadIdx.x == 0) {
    mb_init(fQ, 1), mb_init(eQ, 4 * NWG);
    for (int i = 0; i < NS; i++) mb_init(fK + 8 * i, 1), mb_init(eK + 8 * i, 4 * NWG);
    mb_init_fence();
  }
  __syncthreads();

  if (wg == NWG) {
    regs_producer<NWG>();
    if (threadIdx.x == 128 * NWG) {
      Item x;
      u32 n = 0;
      for (int k = 0; item<BR, BC>(x, k, p.B, p.H, p.K, T, p.docs); k++) {
        mb_wait(eQ, (k & 1) ^ 1);
        mb_expect(fQ, 2 * BR * D * 2);
        tma_tile<BR>(sQ, &qkv, fQ, x.h, x.q0, x.b);
        tma_tile<BR>(sO, &dout, fQ, x.h, x.q0, x.b);
        for (int j = x.jbeg; j < x.jend; j++, n++) {
          const u32 s = n % NS;
          mb_wait(eK + 8 * s, ((n / NS) & 1) ^ 1);
          mb_expect(fK + 8 * s, 2 * TILE);
          tma_tile<BC>(sK + s * 2 * TILE, &qkv, fK + 8 * s, p.H + x.hk, j * BC, x.b);
          tma_tile<BC>(sK + s * 2 * TILE + TILE, &qkv, fK + 8 * s, p.H + p.K + x.hk, j * BC, x.b);
        }
      }
    }
  } else {
    regs_consumer<NWG>();
    const int gid = lane >> 2, tig = lane & 3;
    const float sl2 = p.scale * LOG2E;
    const u32 aQ = sQ + wg * 64 * 128, aO = sO + wg * 64 * 128;
    Item x;
    u32 n = 0;
    for (int k = 0; item<BR, BC>(x, k, p.B, p.H, p.K, T, p.docs); k++) {
      const int wq0 = x.q0 + warp * 16;
      const int jend = min(x.jend, (x.q0 + wg * 64 + 63) / BC + 1);
      int whi = 0, ds[2] = {0, 0};
      if (DOCS) {
        const int* dp = p.docs + (i64)x.b * T;
        whi = dp[min(wq0 + 15, T - 1)];
        ds[0] = dp[min(wq0 + gid, T - 1)];
        ds[1] = dp[min(wq0 + gid + 8, T - 1)];
      }
      float acc[D / 2], ls[2], de[2];
      u32 w[BC / 16][4];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int row = wq0 + gid + r * 8;
        const i64 at = ((i64)x.b * p.H + x.h) * T + row;
        ls[r] = row < T ? p.lse[at] * LOG2E : 0.f;
        de[r] = row < T ? p.delta[at] : 0.f;
      }
#pragma unroll
      for (int i = 0; i < D / 2; i++) acc[i] = 0.f;
      auto probs = [&](float (&s)[BC / 2], int k0) {
#pragma unroll
        for (int i = 0; i < BC / 2; i++) s[i] = ex2(fmaf(s[i], sl2, -ls[(i >> 1) & 1]));
        bool masked = k0 + BC - 1 > wq0;
        if (DOCS) masked = masked || k0 < whi;
        if (masked) {
#pragma unroll
          for (int nt = 0; nt < ST; nt++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
              const int key = k0 + nt * 8 + tig * 2 + (e & 1), row = wq0 + gid + (e >> 1) * 8;
              bool dead = key > row;
              if (DOCS) dead = dead || key < ds[e >> 1];
              if (dead) s[nt * 4 + e] = 0.f;
            }
        }
      };
      auto pack_ds = [&](const float (&s)[BC / 2], const float (&g)[BC / 2]) {
#pragma unroll
        for (int nt = 0; nt < ST; nt++) {
          const float *y = s + nt * 4, *z = g + nt * 4;
          w[nt >> 1][(nt & 1) * 2] = pack2(y[0] * (z[0] - de[0]), y[1] * (z[1] - de[0]));
          w[nt >> 1][(nt & 1) * 2 + 1] = pack2(y[2] * (z[2] - de[1]), y[3] * (z[3] - de[1]));
        }
      };
      u32 prev = 0;
      mb_wait(fQ, k & 1);
      float s[BC / 2], g[BC / 2];
      for (int j = x.jbeg; j < jend; j++, n++) {
        const u32 st = n % NS, sS = sK + st * 2 * TILE;
        mb_wait(fK + 8 * st, (n / NS) & 1);
        wg_fence();
        gemm_ss<BC, BR, BC>(s, aQ, sS);
        wg_commit();
        gemm_ss<BC, BR, BC>(g, aO, sS + TILE);
        wg_commit();
        wg_wait<1>();
        pin(s);
        if (prev && lane == 0) mb_arrive(prev);
        prev = eK + 8 * st;
        probs(s, j * BC);
        wg_wait<0>();
        pin(g);
        pack_ds(s, g);
        wg_fence();
        gemm_rs<BC>(acc, w, sS);
        wg_commit();
      }
      wg_wait<0>();
      pin(acc);
      if (lane == 0) {
        mb_arrive(prev);
        mb_arrive(eQ);
      }
      for (int j = jend; j < x.jend; j++, n++) {
        mb_wait(fK + 8 * (n % NS), (n / NS) & 1);
        if (lane == 0) mb_arrive(eK + 8 * (n % NS));
      }
      __syncwarp();
      store16(sW + warp * 16 * 2 * D, acc, p.scale, p.scale, p.dq + x.b * p.sb + wq0 * p.st + (i64)x.h * D, p.st, T - wq0);
    }
  }
}
