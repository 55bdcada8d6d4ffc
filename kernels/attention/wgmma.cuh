// The path of sm_90a: products by wgmma, tiles by the tensor copy engine (TMA).
//
// A block is NWG consumer warpgroups and one producer warp that brings tiles in.
// Consumers wait on full barriers and release tiles on empty ones, and nothing else
// couples them: they drift apart, and one's exponentials run under another's products.
// (With a block barrier a step instead the forward pass reached 70 % of this.)
//
// A tensor map describes [B,T,heads,D] as 4 dimensions (D, heads, T, B) with boxes of
// 64 x 1 x 64 x 1, 128-byte swizzle and zeros outside: rows past T arrive as zeros. One
// map of qkv serves q, k and v, which are heads 0, H and H+K of it.
//
// Shared tiles are panels of 64 columns: [D/64][rows][64] bf16.

static_assert(HD == D, "head sizes of this path are 64 and 128");

struct __align__(64) TMap { char x[128]; };

// --- barriers and copies

DEV void mb_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
DEV void mb_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
DEV void mb_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
DEV void mb_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEV void mb_wait(u32 bar, u32 parity) {
  u32 ok;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
  } while (!ok);
}
// cp_arrive counts this lane's arrival once its earlier cp.async copies have landed.
DEV void cp_arrive(u32 bar) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory"); }
DEV void tma(u32 dst, const TMap* m, u32 bar, int d, int h, int t, int b) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
               ::"r"(dst), "l"(m), "r"(d), "r"(h), "r"(t), "r"(b), "r"(bar) : "memory");
}
// tma_tile starts the copy of ROWS rows from t on of one head.
template <int ROWS>
DEV void tma_tile(u32 dst, const TMap* m, u32 bar, int h, int t, int b) {
#pragma unroll
  for (int pn = 0; pn < D / 64; pn++)
#pragma unroll
    for (int r = 0; r < ROWS / 64; r++) tma(dst + pn * ROWS * 128 + r * 8192, m, bar, pn * 64, h, t + r * 64, b);
}

// The producer gives most of its registers to the consumers.
template <int NWG>
DEV void regs_producer() {
  if (NWG == 3) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
  else asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
}
template <int NWG>
DEV void regs_consumer() {
  if (NWG == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
  else asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
}

// --- wgmma

DEV void wg_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
DEV void wg_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// pin keeps the compiler from moving uses of an accumulator across a wait.
template <int N>
DEV void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// Descriptor of an operand whose contiguous dimension is the reduced one.
DEV u64 desc_k(u32 a) { return ((u64)1 << 62) | ((u64)(1024 >> 4) << 32) | ((u64)1 << 16) | ((a & 0x3ffff) >> 4); }
// Descriptor of an operand whose rows are the reduced dimension; its panels are `panel` bytes apart.
DEV u64 desc_n(u32 a, u32 panel) {
  return ((u64)1 << 62) | ((u64)(1024 >> 4) << 32) | ((u64)(panel >> 4) << 16) | ((a & 0x3ffff) >> 4);
}

// d[64 x N] = (add ? d : 0) + A B, 16 deep. B comes from shared memory, transposed where TB
// is 1; A from shared memory (ss) or registers (rs). A lane's d holds, of every 8 columns,
// 2 of row lane/4 and 2 of the row 8 below.
#define OUT4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT16(i) OUT4(i), OUT4(i + 4), OUT4(i + 8), OUT4(i + 12)
#define OUT32(i) OUT16(i), OUT16(i + 16)
template <int N> struct Wg;
template <> struct Wg<64> {
  template <int TB> static DEV void ss(float* d, u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, %35;\n}\n"
                 : OUT32(0)
                 : "l"(a), "l"(b), "r"(add), "n"(TB));
  }
  template <int TB> static DEV void rs(float* d, const u32* a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}\n"
                 : OUT32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TB));
  }
};
template <> struct Wg<128> {
  template <int TB> static DEV void ss(float* d, u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, p, 1, 1, 0, %67;\n}\n"
                 : OUT32(0), OUT32(32)
                 : "l"(a), "l"(b), "r"(add), "n"(TB));
  }
  template <int TB> static DEV void rs(float* d, const u32* a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, %70;\n}\n"
                 : OUT32(0), OUT32(32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TB));
  }
};

// c[64 x N] = A Bᵀ over D, both with their columns reduced and in shared memory, with AROWS
// and BROWS rows a panel.
template <int N, int AROWS, int BROWS>
DEV void gemm_ss(float* c, u32 a, u32 b) {
#pragma unroll
  for (int kk = 0; kk < D / 16; kk++)
    Wg<N>::template ss<0>(c, desc_k(a + (kk >> 2) * AROWS * 128 + (kk & 3) * 32), desc_k(b + (kk >> 2) * BROWS * 128 + (kk & 3) * 32), kk != 0);
}
// c[64 x D] += A B over R rows of B; A in registers, B in shared memory with R rows a panel.
template <int R>
DEV void gemm_rs(float* c, const u32 (&a)[R / 16][4], u32 b) {
#pragma unroll
  for (int kk = 0; kk < R / 16; kk++) Wg<D>::template rs<1>(c, a[kk], desc_n(b + kk * 16 * 128, R * 128), 1);
}

// --- results and work

// store16 writes a warp's 16 x D accumulator, rows times m0 and (8 below) m1, as bf16 to
// the first valid rows of g, through 32*D bytes of its own shared memory at s.
DEV void store16(u32 s, const float (&acc)[D / 2], float m0, float m1, bf16* g, i64 st, int valid) {
  const int lane = threadIdx.x & 31, gid = lane >> 2, tig = lane & 3;
#pragma unroll
  for (int nt = 0; nt < D / 8; nt++) {
    const u32 a = s + gid * (2 * D) + ((nt ^ (gid & 7)) << 4) + tig * 4;
    sts32(a, pack2(acc[nt * 4] * m0, acc[nt * 4 + 1] * m0));
    sts32(a + 8 * 2 * D, pack2(acc[nt * 4 + 2] * m1, acc[nt * 4 + 3] * m1));
  }
  __syncwarp();
  constexpr int CPR = D / 8, RPP = 32 / CPR;
  const int r0 = lane / CPR, c = lane % CPR;
#pragma unroll
  for (int i = 0; i < 16 / RPP; i++) {
    const int r = r0 + i * RPP;
    u32 w[4];
    lds128(w, s + r * (2 * D) + ((c ^ (r & 7)) << 4));
    if (r < valid) *(uint4*)(g + r * st + c * 8) = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

// An Item is BR query rows of one head and the tiles of BC keys that they see. Items stand
// in order of falling cost, and a block takes items blockIdx.x, 2*gridDim.x-1-blockIdx.x,
// 2*gridDim.x+blockIdx.x, ...: with a block a multiprocessor the load evens out, with a
// block an item each block has one.
struct Item {
  int q0, b, h, hk, jbeg, jend;
};
template <int BR, int BC>
DEV bool item(Item& x, int k, int B, int H, int K, int T, const int* docs) {
  const int G = gridDim.x, idx = (k & 1) ? (k + 1) * G - 1 - (int)blockIdx.x : k * G + (int)blockIdx.x;
  const int BH = B * H, nq = (T + BR - 1) / BR;
  if (idx >= BH * nq) return false;
  const int bh = idx % BH;
  x.q0 = (nq - 1 - idx / BH) * BR;
  x.b = bh / H;
  x.h = bh % H;
  x.hk = x.h / (H / K);
  x.jend = (min(x.q0 + BR, T) + BC - 1) / BC;
  x.jbeg = DOCS ? docs[(i64)x.b * T + x.q0] / BC : 0;
  return true;
}
