// The optimizer's step over a list of parameters in one launch, and the coefficient
// of clipping.

// Segment is one parameter. Weights, moments and gradients are each n elements.
struct Segment {
    float* p;      // the weight in f32: the master, or the weight itself
    bf16* w;       // the weight in bf16, null where p is the weight
    float* m;      // the moments
    float* v;
    const void* g; // the gradient, f32 or bf16
    i64 n;
    u32 first; // its first chunk
    u32 flags;
};
constexpr u32 gradF32 = 1, decays = 2, aligned = 4; // aligned: all addresses are multiples of 4 elements

constexpr i32 chunk = 8192; // elements a block

struct StepArgs {
    const Segment* segments;
    const u32* owners;   // [chunks], the segment that a chunk lies in
    const double* scale; // [1], may be null
    float keep;          // 1 - lr*decay
    float rate, beta1, beta2, rest2, root, eps; // as on the CPU; beta1 is 1-beta1
};

// step does W elements from i on.
template <int W, class G> __device__ __forceinline__ void step(const StepArgs& a, const Segment& s, i64 i, float scale, float keep) {
    float p[W], m[W], v[W], g[W];
    read(g, static_cast<const G*>(s.g) + i);
    read(m, s.m + i);
    read(v, s.v + i);
    read(p, s.p + i);
#pragma unroll
    for (int j = 0; j < W; j++) {
        const float d = g[j] * scale;
        m[j] += a.beta1 * (d - m[j]);
        v[j] = a.beta2 * v[j] + a.rest2 * d * d;
        p[j] = p[j] * keep - a.rate * m[j] / (sqrtf(v[j]) * a.root + a.eps);
    }
    write(s.m + i, m);
    write(s.v + i, v);
    write(s.p + i, p);
    if (s.w) {
        __builtin_assume(__isGlobal(s.w));
        write(s.w + i, p);
    }
}

template <int W, class G> __device__ __forceinline__ void steps(const StepArgs& a, const Segment& s, float scale, float keep) {
    const i64 from = (i64)(blockIdx.x - s.first) * chunk, to = min(from + chunk, s.n);
    i64 i = from + threadIdx.x * W;
#pragma unroll 1
    for (; i + W <= to; i += blockDim.x * W) step<W, G>(a, s, i, scale, keep);
#pragma unroll 1
    for (; i < to; i++) step<1, G>(a, s, i, scale, keep); // the end of the segment, fewer than W elements
}

// adamw: a block does a chunk of a segment. 28 bytes a parameter with a bf16 weight
// and gradient, all by 16 or 8 bytes a thread without gaps: memory is the limit.
extern "C" __global__ void __launch_bounds__(256) adamw(StepArgs a) {
    const Segment s = a.segments[a.owners[blockIdx.x]];
    // The compiler knows this of parameters, but not of pointers read from memory.
    __builtin_assume(__isGlobal(s.p));
    __builtin_assume(__isGlobal(s.m));
    __builtin_assume(__isGlobal(s.v));
    __builtin_assume(__isGlobal(s.g));
    float scale = 1;
    if (a.scale) {
        const double x = *a.scale;
        if (!(x - x == 0)) return; // NaN or infinite: nothing changes
        scale = (float)x;
    }
    const float keep = s.flags & decays ? a.keep : 1;
    if (s.flags & gradF32) {
        if (s.flags & aligned)
            steps<4, float>(a, s, scale, keep);
        else
            steps<1, float>(a, s, scale, keep);
    } else {
        if (s.flags & aligned)
            steps<4, bf16>(a, s, scale, keep);
        else
            steps<1, bf16>(a, s, scale, keep);
    }
}

struct ClipArgs {
    double* coef;
    const double* norm2;
    const double* loss;
    double limit;
};

// clip, one thread: see Coefficient in adamw.go.
extern "C" __global__ void clip(ClipArgs a) {
    const double sum = *a.norm2 + *a.loss;
    double coef = 1;
    if (!(sum - sum == 0))
        coef = __longlong_as_double(0x7ff8000000000000);
    else if (a.limit != 0)
        coef = fmin(1.0, a.limit / (sqrt(*a.norm2) + 1e-6));
    *a.coef = coef;
}
