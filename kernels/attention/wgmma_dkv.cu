// dK and dV by wgmma. A warpgroup owns 64 keys of one key head. For each query head of the
// group and each tile of QUERIES queries: S^T = K Q^T, dP^T = V dO^T, dV += P^T dO and
// dK += dS^T Q, with P^T and dS^T kept in registers. The group is summed in f32 and in one
// order. One block of keys a block of the grid: a persistent loop was slower.
//   grid B*K*ceil(T/(64*GROUPS)), 128*(GROUPS+1) threads
//   shared 384*GROUPS*D + STAGES*QUERIES*(4*D + 12) + 8 + 16*STAGES bytes
//   GROUPS   consumer warpgroups
//   QUERIES  queries a tile
//   STAGES   tiles of queries in flight

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
    attention_dkv_wgmma(const __grid_constant__ TMap qkv, const __grid_constant__ TMap dout, const Backward p) {
  extern __shared__ __align__(1024) unsigned char smem[];
  constexpr int NWG = GROUPS, NS = STAGES, BM = QUERIES, BN = 64 * NWG, NTH = 128 * (NWG + 1), ST = BM / 8;
  constexpr u32 TILE = BM * D * 2;
  const u32 sK = smem_addr(smem), sV = sK + BN * D * 2;
  const u32 sQ = sV + BN * D * 2;       // NS x (Q, dO)
  const u32 sW = sQ + NS * 2 * TILE;    // staging of the results
  const u32 sL = sW + BN * D * 2;       // NS x (lse, delta, docs)
  const u32 bars = sL + NS * 3 * BM * 4;
  const u32 fKV = bars, fQ = bars + 8, eQ = fQ + 8 * NS;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wg = threadIdx.x >> 7;
  const int BH = p.B * p.K, G = p.H / p.K, T = p.T;
  const int n0 = (int)(blockIdx.x / BH) * BN, bh = blockIdx.x % BH;  // most queries first
  const int b = bh / p.K, hk = bh % p.K, mbeg = n0 / BM;

  if (threadIdx.x == 0) {
    mb_init(fKV, 1);
    for (int i = 0; i < NS; i++) mb_init(fQ + 8 * i, 33), mb_init(eQ + 8 * i, 4 * NWG);
    mb_init_fence();
  }
  __syncthreads();
  int mend = (T + BM - 1) / BM;
  if (DOCS) {  // only tiles of queries whose first row's document starts at or before the last key
    const int* dp = p.docs + (i64)b * T;
    int c = 0;
    for (int base = mbeg; base < mend; base += NTH) {
      const int m = base + threadIdx.x;
      const int got = __syncthreads_count(m < mend && dp[m * BM] <= n0 + BN - 1);
      c += got;
      if (got < NTH) break;
    }
    mend = mbeg + c;
  }

  if (wg == NWG) {
    regs_producer<NWG>();
    if (warp == 4 * NWG) {
      if (lane == 0) {
        mb_expect(fKV, 2 * BN * D * 2);
        tma_tile<BN>(sK, &qkv, fKV, p.H + hk, n0, b);
        tma_tile<BN>(sV, &qkv, fKV, p.H + p.K + hk, n0, b);
      }
      const float* gl = p.lse + ((i64)b * p.H + hk * G) * T;
      const float* ge = p.delta + ((i64)b * p.H + hk * G) * T;
      u32 n = 0;
      for (int h = 0; h < G; h++, gl += T, ge += T)
        for (int m = mbeg; m < mend; m++, n++) {
          const u32 s = n % NS;
          const int m0 = m * BM;
          mb_wait(eQ + 8 * s, ((n / NS) & 1) ^ 1);
          if (lane == 0) {
            mb_expect(fQ + 8 * s, 2 * TILE);
            tma_tile<BM>(sQ + s * 2 * TILE, &qkv, fQ + 8 * s, hk * G + h, m0, b);
            tma_tile<BM>(sQ + s * 2 * TILE + TILE, &dout, fQ + 8 * s, hk * G + h, m0, b);
          }
          const u32 dst = sL + s * 3 * BM * 4;
#pragma unroll
          for (int i = 0; i < BM / 32; i++) {
            const int t = i * 32 + lane;
            const bool ok = m0 + t < T;
            const int at = ok ? m0 + t : 0;
            cp4(dst + t * 4, gl + at, ok ? 4 : 0);
            cp4(dst + (BM + t) * 4, ge + at, ok ? 4 : 0);
            if (DOCS) cp4(dst + (2 * BM + t) * 4, p.docs + (i64)b * T + at, ok ? 4 : 0);
          }
          cp_arrive(fQ + 8 * s);
        }
    }
  } else {
    regs_consumer<NWG>();
    const int gid = lane >> 2, tig = lane & 3;
    const float sl2 = p.scale * LOG2E;
    const u32 aK = sK + wg * 64 * 128, aV = sV + wg * 64 * 128;
    const int gn0 = n0 + wg * 64, wn0 = n0 + warp * 16;
    float dk[D / 2], dv[D / 2];
    u32 wp[BM / 16][4], ws[BM / 16][4];
#pragma unroll
    for (int i = 0; i < D / 2; i++) dk[i] = 0.f, dv[i] = 0.f;
    // P^T from S^T in place: columns are queries m0.., their lse at aL
    auto probs = [&](float (&s)[BM / 2], int m0, u32 aL) {
#pragma unroll
      for (int nt = 0; nt < ST; nt++) {
        float l0, l1;
        lds_f2(l0, l1, aL + nt * 32);
        l0 *= LOG2E, l1 *= LOG2E;
        float* x = s + nt * 4;
        x[0] = ex2(fmaf(x[0], sl2, -l0));
        x[1] = ex2(fmaf(x[1], sl2, -l1));
        x[2] = ex2(fmaf(x[2], sl2, -l0));
        x[3] = ex2(fmaf(x[3], sl2, -l1));
      }
      bool masked = m0 < wn0 + 15;
      if (DOCS) masked = masked || p.docs[(i64)b * T + min(m0 + BM - 1, T - 1)] > wn0;
      if (masked) {
#pragma unroll
        for (int nt = 0; nt < ST; nt++) {
          int d0 = 0, d1 = 0;
          if (DOCS) {
            float f0, f1;
            lds_f2(f0, f1, aL + 2 * BM * 4 + nt * 32);
            d0 = __float_as_int(f0), d1 = __float_as_int(f1);
          }
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const int row = m0 + nt * 8 + tig * 2 + (e & 1), key = wn0 + gid + (e >> 1) * 8;
            bool dead = key > row;
            if (DOCS) dead = dead || key < ((e & 1) ? d1 : d0);
            if (dead) s[nt * 4 + e] = 0.f;
          }
        }
      }
    };
    auto pack_p = [&](const float (&s)[BM / 2]) {
#pragma unroll
      for (int nt = 0; nt < ST; nt++) {
        wp[nt >> 1][(nt & 1) * 2] = pack2(s[nt * 4], s[nt * 4 + 1]);
        wp[nt >> 1][(nt & 1) * 2 + 1] = pack2(s[nt * 4 + 2], s[nt * 4 + 3]);
      }
    };
    auto pack_ds = [&](const float (&s)[BM / 2], const float (&g)[BM / 2], u32 aL) {
#pragma unroll
      for (int nt = 0; nt < ST; nt++) {
        float e0, e1;
        lds_f2(e0, e1, aL + BM * 4 + nt * 32);
        const float *x = s + nt * 4, *y = g + nt * 4;
        ws[nt >> 1][(nt & 1) * 2] = pack2(x[0] * (y[0] - e0), x[1] * (y[1] - e1));
        ws[nt >> 1][(nt & 1) * 2 + 1] = pack2(x[2] * (y[2] - e0), x[3] * (y[3] - e1));
      }
    };

    int m = mbeg;
    mb_wait(fKV, 0);
    const u32 total = (mend - mbeg) * G;
    for (u32 n = 0; n < total; n++) {
      const u32 st = n % NS, sS = sQ + st * 2 * TILE, aL = sL + st * 3 * BM * 4 + tig * 8;
      const int m0 = m * BM;
      if (++m == mend) m = mbeg;
      mb_wait(fQ + 8 * st, (n / NS) & 1);
      if (m0 + BM - 1 < gn0) {  // wholly above the diagonal for this warpgroup
        if (lane == 0) mb_arrive(eQ + 8 * st);
        continue;
      }
      float s[BM / 2], g[BM / 2];
      wg_fence();
      gemm_ss<BM, BN, BM>(s, aK, sS);
      wg_commit();
      gemm_ss<BM, BN, BM>(g, aV, sS + TILE);
      wg_commit();
      wg_wait<1>();
      pin(s);
      probs(s, m0, aL);
      pack_p(s);
      wg_fence();
      gemm_rs<BM>(dv, wp, sS + TILE);
      wg_commit();
      wg_wait<1>();
      pin(g);
      pack_ds(s, g, aL);
      wg_fence();
      gemm_rs<BM>(dk, ws, sS);
      wg_commit();
      wg_wait<0>();
      if (lane == 0) mb_arrive(eQ + 8 * st);
    }
    pin(dk);
    pin(dv);
    __syncwarp();
    store16(sW + warp * 16 * 2 * D, dv, 1.f, 1.f, p.dv + b * p.sb + wn0 * p.st + (i64)hk * D, p.st, T - wn0);
    __syncwarp();
    store16(sW + warp * 16 * 2 * D, dk, p.scale, p.scale, p.dk + b * p.sb + wn0 * p.st + (i64)hk * D, p.st, T - wn0);
  }
}
