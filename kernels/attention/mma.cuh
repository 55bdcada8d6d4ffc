// The path of sm_80 and newer: products by mma.sync, tiles by cp.async and ldmatrix.
//
// A tile is ROWS x D bf16 in shared memory, rows of 2*D bytes; 16-byte chunk c of row r
// lies at chunk c ^ (r & 7), so that ldmatrix has no bank conflicts. Of the D columns the
// products read the first 16*KS, and accumulators hold NT blocks of 8.

constexpr int KS = (HD + 15) / 16, NT = 2 * KS;

DEV void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEV void cp_wait_all() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

DEV void ldsm4(u32* r, u32 a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a));
}
DEV void ldsm4t(u32* r, u32 a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a));
}
// c[16x8] += a[16x16] b[16x8]
DEV void mma(float* c, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// load_tile starts the copy of ROWS rows, st elements apart from g on, by THREADS threads;
// rows from valid on and columns from HD on become zeros.
template <int ROWS, int THREADS>
DEV void load_tile(u32 dst, const bf16* g, i64 st, int valid) {
  constexpr int CPR = D / 8, RPP = THREADS / CPR;
  static_assert(ROWS % RPP == 0 && RPP % 8 == 0, "tile shape");
  const int r0 = threadIdx.x / CPR, c = threadIdx.x % CPR;
  const int rows = HD == D || c * 8 < HD ? valid : 0;
  const u32 d0 = dst + r0 * (2 * D) + ((c ^ (r0 & 7)) << 4);
  const bf16* s = g + r0 * st + c * 8;
#pragma unroll
  for (int i = 0; i < ROWS / RPP; i++) {
    const bool ok = r0 + i * RPP < rows;
    cp16(d0 + i * RPP * 2 * D, ok ? s + i * RPP * st : g, ok ? 16 : 0);
  }
}

// store_rows writes a warp's 32 x HD accumulator, times mul by half of each 16 rows, as
// bf16 to the first valid rows of g, through the warp's own 32 rows of shared memory.
DEV void store_rows(u32 rows, float (&acc)[2][NT][4], const float (&mul)[2][2], bf16* g, i64 st, int valid) {
  const int lane = threadIdx.x & 31, gid = lane >> 2, tig = lane & 3;
#pragma unroll
  for (int mt = 0; mt < 2; mt++)
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      const u32 a = rows + (mt * 16 + gid) * (2 * D) + ((nt ^ (gid & 7)) << 4) + tig * 4;
      sts32(a, pack2(acc[mt][nt][0] * mul[mt][0], acc[mt][nt][1] * mul[mt][0]));
      sts32(a + 8 * 2 * D, pack2(acc[mt][nt][2] * mul[mt][1], acc[mt][nt][3] * mul[mt][1]));
    }
  __syncwarp();
  constexpr int CPR = D / 8, RPP = 32 / CPR;
  const int r0 = lane / CPR, c = lane % CPR;
  const int stored = HD == D || c * 8 < HD ? valid : 0;
#pragma unroll
  for (int i = 0; i < 32 / RPP; i++) {
    const int r = r0 + i * RPP;
    u32 w[4];
    lds128(w, rows + r * (2 * D) + ((c ^ (r & 7)) << 4));
    if (r < stored) *(uint4*)(g + r * st + c * 8) = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

// Offsets of a lane's ldmatrix addresses within a tile. Step kk along the columns is
// address ^ (kk << 5): the chunk number is xor-ed, the row stays.
//   rows16: 16 rows from row on as the A operand, or as B of a product over rows (transposed)
//   cols16: 16 rows as B of a product over columns
DEV u32 rows16(int row) {
  const int lane = threadIdx.x & 31, chunk = (lane >> 4) ^ (lane & 7);
  return (row + (lane & 15)) * (2 * D) + (chunk << 4);
}
DEV u32 cols16() {
  const int lane = threadIdx.x & 31, chunk = ((lane >> 3) & 1) ^ (lane & 7);
  return ((lane & 7) + ((lane >> 4) << 3)) * (2 * D) + (chunk << 4);
}

// scores adds x yᵀ to s: 32 rows at x, N rows at y, over the columns.
template <int N>
DEV void scores(float (&s)[2][N / 8][4], u32 x, u32 y) {
#pragma unroll
  for (int kk = 0; kk < KS; kk++) {
    u32 xa[2][4];
    ldsm4(xa[0], x ^ (kk << 5));
    ldsm4(xa[1], (x ^ (kk << 5)) + 16 * 2 * D);
#pragma unroll
    for (int np = 0; np < N / 16; np++) {
      u32 yb[4];
      ldsm4(yb, (y ^ (kk << 5)) + np * 16 * 2 * D);
      mma(s[0][2 * np], xa[0], yb);
      mma(s[1][2 * np], xa[1], yb);
      mma(s[0][2 * np + 1], xa[0], yb + 2);
      mma(s[1][2 * np + 1], xa[1], yb + 2);
    }
  }
}

// accumulate adds w z to acc: w is 32 x 16 in registers, z the rows from 16*kk on of the
// tile at z.
DEV void accumulate(float (&acc)[2][NT][4], const u32 (&w)[2][4], u32 z, int kk) {
#pragma unroll
  for (int np = 0; np < KS; np++) {
    u32 zb[4];
    ldsm4t(zb, (z ^ (np << 5)) + kk * 16 * 2 * D);
    mma(acc[0][2 * np], w[0], zb);
    mma(acc[1][2 * np], w[1], zb);
    mma(acc[0][2 * np + 1], w[0], zb + 2);
    mma(acc[1][2 * np + 1], w[1], zb + 2);
  }
}

template <int N>
DEV void clear(float (&a)[2][N][4]) {
#pragma unroll
  for (int mt = 0; mt < 2; mt++)
#pragma unroll
    for (int nt = 0; nt < N; nt++)
#pragma unroll
      for (int e = 0; e < 4; e++) a[mt][nt][e] = 0.f;
}
