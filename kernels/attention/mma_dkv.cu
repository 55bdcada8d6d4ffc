// dK and dV by mma.sync. A block takes KEYS keys of one key head and goes through the
// group's query heads and tiles of QUERIES queries, so that the group is summed in f32 and in
// one order. Its warps work in pairs of 32 keys: the first makes S^T = K Q^T, P^T and
// dV += P^T dO, the second dP^T = V dO^T, dS^T = P^T (dP^T - delta) and dK += dS^T Q.
// Both run the same code with K and V, Q and dO exchanged. P^T passes between them in f32
// through shared memory: one warp could not hold both accumulators at D = 128, and with
// 16 keys a warp shared memory would be the limit. Transposed scores leave the first
// products in the register layout that the second ones take.
//   grid B*K*ceil(T/KEYS), 2*KEYS threads
//   shared 4*D*(KEYS + 2*QUERIES) + 4*KEYS*QUERIES + 24*QUERIES bytes
//   KEYS     keys a block
//   QUERIES  queries a tile

extern "C" __global__ void __launch_bounds__(2 * KEYS, 1) attention_dkv_mma(const Backward p) {
  extern __shared__ __align__(1024) unsigned char smem[];
  constexpr int BN = KEYS, BM = QUERIES, ST = BM / 8, PAIRS = BN / 32, THREADS = 2 * BN;
  static_assert(THREADS >= 3 * BM, "threads to load lse, delta and docs");
  constexpr u32 TILE = BM * D * 2;
  const u32 sK = smem_addr(smem), sV = sK + BN * D * 2;
  const u32 sQ = sV + BN * D * 2;           // 2 x (Q, dO)
  const u32 sP = sQ + 4 * TILE;             // f32 P^T, 32 x BM a pair
  const u32 sL = sP + PAIRS * 32 * BM * 4;  // 2 x (lse[BM], delta[BM], docs[BM])
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, pair = warp % PAIRS;
  const bool second = warp >= PAIRS;
  const int gid = lane >> 2, tig = lane & 3;
  const int BH = p.B * p.K, G = p.H / p.K, T = p.T;
  const int n0 = (int)(blockIdx.x / BH) * BN, bh = blockIdx.x % BH;
  const int b = bh / p.K, hk = bh % p.K;
  const int wn0 = n0 + pair * 32;
  const float sl2 = p.scale * LOG2E;

  const int mbeg = n0 / BM;
  int mend = (T + BM - 1) / BM;
  if (DOCS) {  // only tiles of queries whose first row's document starts at or before the last key
    const int* dp = p.docs + (i64)b * T;
    int c = 0;
    for (int base = mbeg; base < mend; base += THREADS) {
      const int m = base + threadIdx.x;
      const int got = __syncthreads_count(m < mend && dp[m * BM] <= n0 + BN - 1);
      c += got;
      if (got < THREADS) break;
    }
    mend = mbeg + c;
  }
  const int total = (mend - mbeg) * G;

  const bf16* gq = p.q + b * p.sb + (i64)hk * G * HD;
  const bf16* gd = p.dout + b * p.osb + (i64)hk * G * HD;
  const float* gl = p.lse + ((i64)b * p.H + hk * G) * T;
  const float* ge = p.delta + ((i64)b * p.H + hk * G) * T;

  load_tile<BN, THREADS>(sK, p.k + b * p.sb + n0 * p.st + (i64)hk * HD, p.st, T - n0);
  load_tile<BN, THREADS>(sV, p.v + b * p.sb + n0 * p.st + (i64)hk * HD, p.st, T - n0);

  // Rows past T arrive as zeros: with dO, delta and lse 0 they contribute nothing.
  int lm = mbeg, lh = 0;  // the next tile to load
  auto issue = [&](int stage) {
    const int m0 = lm * BM, valid = T - m0;
    const u32 dst = sQ + stage * 2 * TILE;
    load_tile<BM, THREADS>(dst, gq + (i64)lh * HD + m0 * p.st, p.st, valid);
    load_tile<BM, THREADS>(dst + TILE, gd + (i64)lh * HD + m0 * p.ost, p.ost, valid);
    const int t = threadIdx.x;
    const u32 dl = sL + stage * 3 * BM * 4 + t * 4;
    if (t < BM) {
      const bool ok = t < valid;
      cp4(dl, gl + (i64)lh * T + (ok ? m0 + t : 0), ok ? 4 : 0);
    } else if (t < 2 * BM) {
      const bool ok = t - BM < valid;
      cp4(dl, ge + (i64)lh * T + (ok ? m0 + t - BM : 0), ok ? 4 : 0);
    } else if (DOCS && t < 3 * BM) {
      const bool ok = t - 2 * BM < valid;
      cp4(dl, p.docs + (i64)b * T + (ok ? m0 + t - 2 * BM : 0), ok ? 4 : 0);
    }
    if (++lm == mend) lm = mbeg, lh++;
  };
  if (total > 0) issue(0);
  cp_commit();

  float acc[2][NT][4];
  clear(acc);

  const u32 aX = (second ? sV : sK) + rows16(pair * 32);
  const u32 oY = (second ? TILE : 0) + cols16();
  const u32 oZ = (second ? 0 : TILE) + rows16(0);
  const u32 aP = sP + pair * (32 * BM * 4) + lane * 16;

  int tile = mbeg;
  for (int it = 0; it < total; it++) {
    cp_wait_all();
    __syncthreads();
    const int stage = it & 1;
    if (it + 1 < total) {
      issue(stage ^ 1);
      cp_commit();
    }
    const int m0 = tile * BM;
    if (++tile == mend) tile = mbeg;
    if (m0 + BM - 1 < wn0) continue;  // wholly above the diagonal for this pair

    const u32 sS = sQ + stage * 2 * TILE;
    float s[2][ST][4];
    clear(s);
    scores<BM>(s, aX, sS + oY);

    const u32 aL = sL + stage * 3 * BM * 4 + tig * 8;
    u32 w[2][ST][2];
    if (!second) {
      bool masked = m0 < wn0 + 31;
      if (DOCS) masked = masked || p.docs[(i64)b * T + min(m0 + BM - 1, T - 1)] > wn0;
#pragma unroll
      for (int nt = 0; nt < ST; nt++) {
        float l0, l1;
        lds_f2(l0, l1, aL + nt * 32);
        l0 *= LOG2E, l1 *= LOG2E;
#pragma unroll
        for (int mt = 0; mt < 2; mt++) {
          float* x = s[mt][nt];
          x[0] = ex2(fmaf(x[0], sl2, -l0));
          x[1] = ex2(fmaf(x[1], sl2, -l1));
          x[2] = ex2(fmaf(x[2], sl2, -l0));
          x[3] = ex2(fmaf(x[3], sl2, -l1));
        }
      }
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
          for (int mt = 0; mt < 2; mt++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
              const int row = m0 + nt * 8 + tig * 2 + (e & 1);
              const int key = wn0 + mt * 16 + gid + (e >> 1) * 8;
              bool dead = key > row;
              if (DOCS) dead = dead || key < ((e & 1) ? d1 : d0);
              if (dead) s[mt][nt][e] = 0.f;
            }
        }
      }
#pragma unroll
      for (int nt = 0; nt < ST; nt++)
#pragma unroll
        for (int mt = 0; mt < 2; mt++) {
          float* x = s[mt][nt];
          sts128(aP + (nt * 2 + mt) * 512, __float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
          w[mt][nt][0] = pack2(x[0], x[1]);
          w[mt][nt][1] = pack2(x[2], x[3]);
        }
      // The next __syncthreads keeps this warp off P^T until the other has read it.
      asm volatile("bar.arrive %0, 64;" ::"r"(pair + 1) : "memory");
    } else {
      asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory");
#pragma unroll
      for (int nt = 0; nt < ST; nt++) {
        float e0, e1;
        lds_f2(e0, e1, aL + BM * 4 + nt * 32);
#pragma unroll
        for (int mt = 0; mt < 2; mt++) {
          float* x = s[mt][nt];
          u32 r[4];
          lds128(r, aP + (nt * 2 + mt) * 512);
          w[mt][nt][0] = pack2(__uint_as_float(r[0]) * (x[0] - e0), __uint_as_float(r[1]) * (x[1] - e1));
          w[mt][nt][1] = pack2(__uint_as_float(r[2]) * (x[2] - e0), __uint_as_float(r[3]) * (x[3] - e1));
        }
      }
    }

#pragma unroll
    for (int kk = 0; kk < BM / 16; kk++) {
      const u32 wa[2][4] = {{w[0][2 * kk][0], w[0][2 * kk][1], w[0][2 * kk + 1][0], w[0][2 * kk + 1][1]},
                            {w[1][2 * kk][0], w[1][2 * kk][1], w[1][2 * kk + 1][0], w[1][2 * kk + 1][1]}};
      accumulate(acc, wa, sS + oZ, kk);
    }
  }

  cp_wait_all();
  __syncthreads();
  const float c = second ? p.scale : 1.f;
  const float mul[2][2] = {{c, c}, {c, c}};
  const u32 rows = (second ? sK : sV) + pair * 32 * 2 * D;
  if (second)
    store_rows(rows, acc, mul, p.dk + b * p.sb + wn0 * p.st + (i64)hk * HD, p.st, T - wn0);
  else
    store_rows(rows, acc, mul, p.dv + b * p.sb + wn0 * p.st + (i64)hk * HD, p.st, T - wn0);
}
