// What floats.cuh and peer.cuh are to the GPU's compiler, for the CPU's; and a GPU that
// runs kernels on it: the threads of all blocks take turns on the thread that launches,
// in an order that a seed chooses. Ranks are threads of the process.
#pragma once
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

// --- numbers ---

template <class To, class From> static inline To as(From x) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __uint_as_float(u32 x) { return as<float>(x); }
static inline u32 __float_as_uint(float x) { return as<u32>(x); }
static inline double __longlong_as_double(i64 x) { return as<double>(x); }
static inline i64 __double_as_longlong(double x) { return as<i64>(x); }

struct bf16 { u16 bits; };
struct f16 { u16 bits; };
static inline float wide(float x) { return x; }
static inline float wide(bf16 x) { return as<float>((u32)x.bits << 16); }
static inline float wide(f16 x) { return (float)as<_Float16>(x.bits); }
template <class T> static inline T narrow(float x);
template <> inline float narrow<float>(float x) { return x; }
template <> inline bf16 narrow<bf16>(float x) {
    const u32 b = as<u32>(x);
    if (x != x) return {(u16)(b >> 16 | 0x40)};
    return {(u16)((b + 0x7fff + (b >> 16 & 1)) >> 16)};
}
template <> inline f16 narrow<f16>(float x) { return {as<u16>((_Float16)x)}; }

template <class T> static inline float element(u32 w, int i) { return wide(T{(u16)(w >> i % 2 * 16)}); }
template <> inline float element<float>(u32 w, int) { return as<float>(w); }
template <class T> static inline u32 pair(float a, float b) { return narrow<T>(a).bits | (u32)narrow<T>(b).bits << 16; }
struct alignas(16) uint4 { u32 x, y, z, w; };
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }

// --- threads ---

struct Dim { u32 x; };
static thread_local Dim threadIdx, blockIdx, blockDim, gridDim;

struct Fiber {
    ucontext_t context;
    u32 block, thread;
    bool waits, ended;
    void* stack;
};

struct Launch {
    ucontext_t context;
    std::vector<Fiber> fibers;
    Fiber* now;
    void (*kernel)(const void*);
    const void* args;
    u32 random;
    u32 draw(u32 n) { return random = random * 1664525 + 1013904223, (random >> 8) % n; }
};
static thread_local Launch* launch;

static inline void turn() { swapcontext(&launch->now->context, &launch->context); }
static inline void sometimes(u32 n) { if (launch->draw(n) == 0) turn(); }
static inline void __syncthreads() { launch->now->waits = true; turn(); }

static void enter() {
    launch->kernel(launch->args);
    launch->now->ended = true;
}

// run returns once all threads of all blocks have ended.
static void run(void (*kernel)(const void*), const void* args, u32 blocks, u32 threads, u32 seed) {
    const size_t stack = 64 << 10;
    Launch l = {};
    l.kernel = kernel, l.args = args, l.random = seed, l.fibers.resize(blocks * threads);
    launch = &l, blockDim.x = threads, gridDim.x = blocks;
    for (u32 i = 0; i < blocks * threads; i++) {
        Fiber& f = l.fibers[i];
        f.block = i / threads, f.thread = i % threads, f.stack = malloc(stack);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack, f.context.uc_stack.ss_size = stack, f.context.uc_link = &l.context;
        makecontext(&f.context, enter, 0);
    }
    for (u32 left = blocks * threads; left > 0; sched_yield()) {
        const u32 from = l.draw(l.fibers.size());
        for (u32 i = 0; i < l.fibers.size(); i++) {
            Fiber& f = l.fibers[(from + i) % l.fibers.size()];
            if (f.ended || f.waits) continue;
            l.now = &f, blockIdx.x = f.block, threadIdx.x = f.thread;
            swapcontext(&l.context, &f.context);
            left -= f.ended;
        }
        for (u32 b = 0; b < blocks; b++) { // all that are there are at the barrier
            bool all = true;
            for (Fiber& f : l.fibers) all = all && (f.block != b || f.waits || f.ended);
            if (all) for (Fiber& f : l.fibers) if (f.block == b) f.waits = false;
        }
    }
    for (Fiber& f : l.fibers) free(f.stack);
    launch = nullptr;
}

// --- peers ---

#define DEV static inline
struct alignas(16) Pack { u64 lo, hi; };
DEV void put(Pack* at, u64 lo, u64 hi) {
    const bool first = launch->draw(2); // in no order that a reader may count on
    if (first) __atomic_store_n(&at->lo, lo, __ATOMIC_RELAXED);
    sometimes(8);
    __atomic_store_n(&at->hi, hi, __ATOMIC_RELAXED);
    sometimes(8);
    if (!first) __atomic_store_n(&at->lo, lo, __ATOMIC_RELAXED);
}
DEV Pack get(const Pack* at) {
    sometimes(4);
    return {__atomic_load_n(&at->lo, __ATOMIC_RELAXED), __atomic_load_n(&at->hi, __ATOMIC_RELAXED)};
}
DEV void tell(u32* at, u32 v) { sometimes(2); __atomic_store_n(at, v, __ATOMIC_RELEASE); }
DEV u32 told(const u32* at) { turn(); return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
DEV u32 look(const u32* at) { turn(); return __atomic_load_n(at, __ATOMIC_RELAXED); }
DEV void note(u64* at, u64 v) { __atomic_store_n(at, v, __ATOMIC_RELAXED); }
DEV void publish(u64* at, u64 v) { sometimes(2); __atomic_store_n(at, v, __ATOMIC_RELEASE); }
DEV u32 count(u32* at) { sometimes(2); return __atomic_fetch_add(at, 1, __ATOMIC_ACQ_REL); }
DEV u64 now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
