#!/usr/bin/env python3
"""NCCL itself, a process a GPU, called as nccl-tests calls it: a blocking communicator,
f32 sums in place, calls one behind the other, by events around them. Prints the median
of five turns, in microseconds; size is of the full array.

    NCCL_NVLS_ENABLE=0 python3 docs/benchmarks/nccl.py --ranks 2

It needs libcuda.so.1 and libnccl.so.2 (--nccl PATH for another one), and no package.
"""

import argparse
import ctypes as c
import multiprocessing as mp
import statistics

SIZES = [1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20, 256 << 20, 1 << 30]
CALLS = ["AllReduce", "ReduceScatter", "AllGather"]
TURNS = 5
F32, SUM = 7, 0


class UniqueID(c.Structure):
    _fields_ = [("internal", c.c_char * 128)]


def ok(what, code):
    if code:
        raise SystemExit(f"{what}: error {code}")


def rank(me, n, args, ids, barrier, results):
    cuda, nccl = c.CDLL("libcuda.so.1"), c.CDLL(args.nccl)
    device, context = c.c_int(), c.c_void_p()
    ok("cuInit", cuda.cuInit(0))
    ok("cuDeviceGet", cuda.cuDeviceGet(c.byref(device), me))
    ok("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(c.byref(context), device))
    ok("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))
    uid = UniqueID()
    if me == 0:
        ok("ncclGetUniqueId", nccl.ncclGetUniqueId(c.byref(uid)))
        for _ in range(n - 1):
            ids.put(bytes(uid))
    else:
        c.memmove(c.byref(uid), ids.get(timeout=60), 128)
    comm, stream = c.c_void_p(), c.c_void_p()
    ok("ncclCommInitRank", nccl.ncclCommInitRank(c.byref(comm), c.c_int(n), uid, c.c_int(me)))
    ok("cuStreamCreate", cuda.cuStreamCreate(c.byref(stream), 1))
    begin, end = c.c_void_p(), c.c_void_p()
    for e in (begin, end):
        ok("cuEventCreate", cuda.cuEventCreate(c.byref(e), 0))
    data = c.c_uint64()
    ok("cuMemAlloc", cuda.cuMemAlloc_v2(c.byref(data), c.c_size_t(max(SIZES))))
    ok("cuMemsetD32", cuda.cuMemsetD32_v2(data, c.c_uint32(0x3F8CCCCD), c.c_size_t(max(SIZES) // 4)))

    def calls(kind, size):
        part = size // n
        own = c.c_uint64(data.value + me * part)
        if kind == "AllReduce":
            return lambda: nccl.ncclAllReduce(data, data, c.c_size_t(size // 4), F32, SUM, comm, stream)
        if kind == "ReduceScatter":
            return lambda: nccl.ncclReduceScatter(data, own, c.c_size_t(part // 4), F32, SUM, comm, stream)
        return lambda: nccl.ncclAllGather(own, data, c.c_size_t(part // 4), F32, comm, stream)

    def timed(call, rounds):
        for _ in range(5):
            ok("warm-up", call())
        ok("cuStreamSynchronize", cuda.cuStreamSynchronize(stream))
        barrier.wait(60)
        cuda.cuEventRecord(begin, stream)
        for _ in range(rounds):
            ok("call", call())
        cuda.cuEventRecord(end, stream)
        ok("cuEventSynchronize", cuda.cuEventSynchronize(end))
        ms = c.c_float()
        ok("cuEventElapsedTime", cuda.cuEventElapsedTime(c.byref(ms), begin, end))
        return ms.value * 1e3 / rounds

    version = c.c_int()
    nccl.ncclGetVersion(c.byref(version))
    if me == 0:
        print(f"NCCL {version.value}, {n} ranks, a process each")
        print(f"{'call':14s} {'bytes':>12s} {'µs':>10s} {'busbw GB/s':>10s}")
    for kind in CALLS:
        for size in SIZES:
            took = [timed(calls(kind, size), min(max((1 << 28) // size, 8), 500)) for _ in range(TURNS)]
            if me == 0:
                us, share = statistics.median(took), (n - 1) / n * (2 if kind == "AllReduce" else 1)
                print(f"{kind:14s} {size:12d} {us:10.2f} {size * share / us / 1e3:10.1f}", flush=True)
    ok("ncclCommDestroy", nccl.ncclCommDestroy(comm))
    results.put(me)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--nccl", default="libnccl.so.2")
    args = p.parse_args()
    ids, results, barrier = mp.Queue(), mp.Queue(), mp.Barrier(args.ranks)
    ranks = [mp.Process(target=rank, args=(r, args.ranks, args, ids, barrier, results)) for r in range(args.ranks)]
    for r in ranks:
        r.start()
    for r in ranks:
        r.join()
    raise SystemExit(0 if all(r.exitcode == 0 for r in ranks) else 1)


if __name__ == "__main__":
    main()
