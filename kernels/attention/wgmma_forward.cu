// o and lse by wgmma. A consumer warpgroup owns 64 query rows of one head. S of the next
// tile of keys is issued together with P V of the current one, and the softmax of S runs
// while P V finishes. Blocks stay and take items (see Item); with documents, whose items
// differ in cost, each takes one.
//   grid min(multiprocessors, items), items = B*H*ceil(T/(64*GROUPS)); with documents: items
//   128*(GROUPS+1) threads, shared (256*GROUPS + 4*STAGES*KEYS)*D + 16 + 32*STAGES bytes
//   GROUPS  consumer warpgroups
//   KEYS    keys a tile
//   STAGES  tiles of keys, and of values, in flight

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
    attention_forward_wgmma(const __grid_constant__ TMap qkv, const Forward p) {
  extern __shared__ __align__(1024) unsigned char smem[];
  constexpr int NWG = GROUPS, NS = STAGES, BC = KEYS, BR = 64 * NWG, ST = BC / 8;
  constexpr u32 TILE = BC * D * 2;
  const u32 sQ = smem_addr(smem), sK = sQ + BR * D * 2, sV = sK + NS * TILE, sO = sV + NS * TILE;
  const u32 bars = sO + BR * D * 2;
  const u32 fQ = bars, eQ = bars + 8, fK = bars + 16, eK = fK + 8 * NS, fV = eK + 8 * NS, eV = fV + 8 * NS;
  const int warp = threadIdx.x >> 5, wg = threadIdx.x >> 7, lane = threadIdx.x & 31;
  const int T = p.T;
  if (threadIdx.x == 0) {
    mb_init(fQ, 1), mb_init(eQ, 4 * NWG);
    for (int i = 0; i < NS; i++) mb_init(fK + 8 * i, 1), mb_init(fV + 8 * i, 1), mb_init(eK + 8 * i, 4 * NWG), mb_init(eV + 8 * i, 4 * NWG);
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
        mb_expect(fQ, BR * D * 2);
        tma_tile<BR>(sQ, &qkv, fQ, x.h, x.q0, x.b);
        for (int j = x.jbeg; j < x.jend; j++, n++) {
          const u32 s = n % NS, ph = ((n / NS) & 1) ^ 1;
          mb_wait(eK + 8 * s, ph);
          mb_expect(fK + 8 * s, TILE);
          tma_tile<BC>(sK + s * TILE, &qkv, fK + 8 * s, p.H + x.hk, j * BC, x.b);
          mb_wait(eV + 8 * s, ph);
          mb_expect(fV + 8 * s, TILE);
          tma_tile<BC>(sV + s * TILE, &qkv, fV + 8 * s, p.H + p.K + x.hk, j * BC, x.b);
        }
      }
    }
  } else {
    regs_consumer<NWG>();
    const int gid = lane >> 2, tig = lane & 3;
    const float sl2 = p.scale * LOG2E;
    const u32 aQ = sQ + wg * 64 * 128;
    Item x;
    u32 n = 0;  // key tiles consumed so far
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
      float acc[D / 2], s[BC / 2];
      u32 w[BC / 16][4];
      // Finite, so that a row all of whose scores are masked (-inf) gives zeros and no NaN.
      float mx[2] = {-1e38f, -1e38f}, sum[2] = {0.f, 0.f}, corr[2] = {1.f, 1.f};
      bool grown = false;
#pragma unroll
      for (int i = 0; i < D / 2; i++) acc[i] = 0.f;

      auto softmax = [&](int j) {
        const int k0 = j * BC;
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
              if (dead) s[nt * 4 + e] = -__int_as_float(0x7f800000);
            }
        }
        // The running maximum is raised, and the accumulator rescaled, only when some score
        // of the warp outgrew it by RAISE_LOG2 binary orders.
        float nm[2];
        bool grow = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float m = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
          for (int nt = 1; nt < ST; nt++) m = fmaxf(m, fmaxf(s[nt * 4 + 2 * r], s[nt * 4 + 2 * r + 1]));
          m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
          m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
          nm[r] = m;
          grow = grow || (m - mx[r]) * sl2 > RAISE_LOG2;
        }
        grown = __any_sync(0xffffffffu, grow);
        if (grown) {
#pragma unroll
          for (int r = 0; r < 2; r++) {
            const float m = fmaxf(mx[r], nm[r]);
            corr[r] = ex2((mx[r] - m) * sl2);
            mx[r] = m;
            sum[r] *= corr[r];
          }
        }
        const float ms[2] = {mx[0] * sl2, mx[1] * sl2};
#pragma unroll
        for (int nt = 0; nt < ST; nt++) {
          float* y = s + nt * 4;
#pragma unroll
          for (int e = 0; e < 4; e++) y[e] = ex2(fmaf(y[e], sl2, -ms[e >> 1]));
          sum[0] += y[0] + y[1];
          sum[1] += y[2] + y[3];
        }
      };
      auto pack_p = [&]() {
#pragma unroll
        for (int kk = 0; kk < BC / 16; kk++) {
          const float* y = s + kk * 8;
          w[kk][0] = pack2(y[0], y[1]);
          w[kk][1] = pack2(y[2], y[3]);
          w[kk][2] = pack2(y[4], y[5]);
          w[kk][3] = pack2(y[6], y[7]);
        }
      };

      mb_wait(fQ, k & 1);
      mb_wait(fK + 8 * (n % NS), (n / NS) & 1);
      wg_fence();
      gemm_ss<BC, BR, BC>(s, aQ, sK + (n % NS) * TILE);
      wg_commit();
      wg_wait<0>();
      pin(s);
      if (lane == 0) {
        mb_arrive(eK + 8 * (n % NS));
        if (x.jbeg + 1 >= jend) mb_arrive(eQ);
      }
      softmax(x.jbeg);
      pack_p();

      for (int j = x.jbeg + 1; j < jend; j++) {
        const u32 vs = n % NS, vp = (n / NS) & 1;
        n++;
        const u32 ks = n % NS;
        mb_wait(fK + 8 * ks, (n / NS) & 1);
        mb_wait(fV + 8 * vs, vp);
        pin(s);
        pin(acc);
        wg_fence();
        gemm_ss<BC, BR, BC>(s, aQ, sK + ks * TILE);
        wg_commit();
        gemm_rs<BC>(acc, w, sV + vs * TILE);
        wg_commit();
        wg_wait<1>();
        pin(s);
        if (lane == 0) {
          mb_arrive(eK + 8 * ks);
          if (j + 1 >= jend) mb_arrive(eQ);
        }
        softmax(j);
        wg_wait<0>();
        pin(acc);
        if (lane == 0) mb_arrive(eV + 8 * vs);
        if (grown) {
#pragma unroll
          for (int nt = 0; nt < D / 8; nt++) {
            acc[nt * 4] *= corr[0], acc[nt * 4 + 1] *= corr[0];
            acc[nt * 4 + 2] *= corr[1], acc[nt * 4 + 3] *= corr[1];
          }
        }
        pack_p();
      }
      mb_wait(fV + 8 * (n % NS), (n / NS) & 1);
      pin(acc);
      wg_fence();
      gemm_rs<BC>(acc, w, sV + (n % NS) * TILE);
      wg_commit();
      wg_wait<0>();
      pin(acc);
      if (lane == 0) mb_arrive(eV + 8 * (n % NS));
      n++;
      for (int j = jend; j < x.jend; j++, n++) {  // tiles wholly above this warpgroup's diagonal
        mb_wait(fK + 8 * (n % NS), (n / NS) & 1);
        if (lane == 0) mb_arrive(eK + 8 * (n % NS));
        mb_wait(fV + 8 * (n % NS), (n / NS) & 1);
        if (lane == 0) mb_arrive(eV + 8 * (n % NS));
      }

      float inv[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float l = sum[r];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        inv[r] = 1.f / l;
        const int row = wq0 + gid + r * 8;
        if (tig == 0 && row < T) p.lse[((i64)x.b * p.H + x.h) * T + row] = mx[r] * p.scale + logf(l);
      }
      __syncwarp();
      store16(sO + warp * 16 * 2 * D, acc, inv[0], inv[1], p.o + x.b * p.osb + wq0 * p.ost + (i64)x.h * D, p.ost, T - wq0);
    }
  }
}
