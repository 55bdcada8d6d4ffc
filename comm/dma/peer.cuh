// Memory that other GPUs write while a kernel reads it, and the order between them.
// Nothing else in this folder's kernels is more than C++: a test puts a file of its own
// in this one's place and runs the kernels on the CPU.

#define DEV [[maybe_unused]] static __device__ __forceinline__

// Pack is 16 bytes of an array, the first one lowest.
struct alignas(16) Pack {
    u64 lo, hi;
};

// put and get move two words of 8 bytes, each of which arrives as a whole.
DEV void put(Pack* at, u64 lo, u64 hi) { asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(at), "l"(lo), "l"(hi) : "memory"); }
DEV Pack get(const Pack* at) {
    Pack v;
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(v.lo), "=l"(v.hi) : "l"(at) : "memory");
    return v;
}

// tell writes a counter behind all that this thread has written, and has seen written
// before a barrier of its block. Whoever reads it by told sees all of that.
DEV void tell(u32* at, u32 v) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory"); }
DEV u32 told(const u32* at) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}

// look and note are for words in the host's memory.
DEV u32 look(const u32* at) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
DEV void note(u64* at, u64 v) { asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(at), "l"(v) : "memory"); }

// publish is note behind all that this thread has written, or has seen written.
DEV void publish(u64* at, u64 v) { asm volatile("st.release.sys.global.b64 [%0], %1;" ::"l"(at), "l"(v) : "memory"); }

// count adds one to a counter of this GPU's and returns what it was. What this thread has
// written, and has seen written, comes before; what was before the others' counts, it sees.
DEV u32 count(u32* at) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(at) : "memory");
    return before;
}

// now is the GPU's time, in nanoseconds.
DEV u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
