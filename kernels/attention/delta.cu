// delta[B,H,T] = the sum over d of dO*o: f32 from bf16, a group of D/8 lanes a row, a
// 16-byte load of each tensor a lane. Reads every byte once and writes little.
//   grid ceil(B*T*H*(D/8)/256), 256 threads

struct Delta {
  const bf16 *o, *dout;
  float* delta;
  i64 osb, ost;
  int B, H, T;
};

extern "C" __global__ void __launch_bounds__(256, 1) attention_delta(const Delta p) {
  constexpr int L = D / 8;
  const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / L;  // (b,t,h), h fastest
  const int c = threadIdx.x % L;
  const i64 rows = (i64)p.B * p.T * p.H;
  const i64 rr = row < rows ? row : rows - 1;  // all lanes take part in the shuffles
  const int h = (int)(rr % p.H);
  const i64 bt = rr / p.H;
  const int t = (int)(bt % p.T), b = (int)(bt / p.T);
  float s = 0.f;
  if (HD == D || c * 8 < HD) {
    const i64 at = b * p.osb + t * p.ost + (i64)h * HD + c * 8;
    const uint4 x = *(const uint4*)(p.o + at);
    const uint4 y = *(const uint4*)(p.dout + at);
    s += lo_f(x.x) * lo_f(y.x) + hi_f(x.x) * hi_f(y.x);
    s += lo_f(x.y) * lo_f(y.y) + hi_f(x.y) * hi_f(y.y);
    s += lo_f(x.z) * lo_f(y.z) + hi_f(x.z) * hi_f(y.z);
    s += lo_f(x.w) * lo_f(y.w) + hi_f(x.w) * hi_f(y.w);
  }
#pragma unroll
  for (int m = 1; m < L; m <<= 1) s += __shfl_xor_sync(0xffffffffu, s, m);
  if (c == 0 && row < rows) p.delta[((i64)b * p.H + h) * p.T + t] = s;
}
