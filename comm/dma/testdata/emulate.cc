// The kernels of exchange.cu, direct.cu, pairs.cu and sum.cu, by name, on the CPU. The includes are written
// by the test.
#include "floats.cuh"
#include "exchange.h"
#undef DEV
namespace sums {
#include "sum.h"
}

template <class A, void (*K)(A)> static void call(const void* a) { K(*(const A*)a); }

struct Kernel {
    const char* name;
    size_t size;
    void (*run)(const void*);
};
#define EXCHANGE(NAME) {#NAME, sizeof(Exchange), call<Exchange, NAME>}
#define OF(T) EXCHANGE(sum_marked_##T), EXCHANGE(sum_flagged_##T)
#define LARGE(T) EXCHANGE(two_shot_##T), {"direct_" #T, sizeof(Direct), call<Direct, direct_##T>}
static const Kernel kernels[] = {
    EXCHANGE(move_marked), EXCHANGE(move_flagged), OF(f32), OF(f64), OF(f16), OF(bf16), OF(i32), OF(i64), OF(u8),
    LARGE(f32), LARGE(f16), LARGE(bf16),
    {"pairs", sizeof(Pairs), call<Pairs, pairs>},
    {"sum_f32", sizeof(sums::Sum), call<sums::Sum, sums::sum_f32>},
    {"sum_bf16", sizeof(sums::Sum), call<sums::Sum, sums::sum_bf16>},
    {"sum_f16", sizeof(sums::Sum), call<sums::Sum, sums::sum_f16>},
};

// emulate runs a kernel and returns 0, 1 where there is none of that name, 2 where its
// arguments have another size.
extern "C" int emulate(const char* name, const void* args, size_t size, u32 blocks, u32 threads, u32 seed) {
    for (const Kernel& k : kernels) {
        if (strcmp(k.name, name)) continue;
        if (k.size != size) return 2;
        run(k.run, args, blocks, threads, seed);
        return 0;
    }
    return 1;
}
