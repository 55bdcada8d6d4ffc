#!/usr/bin/env python3
"""All-reduce by gorun, gloo (through PyTorch) and Open MPI (through mpi4py or openmpi.c), on this
machine, in turns, so that all see the same weather.

    go build -o /tmp/gorun ./launcher/gorun
    /usr/bin/python3 docs/benchmarks/peers.py --gorun /tmp/gorun

A peer that is not installed is left out, and the script says what would bring it;
it installs nothing. On Debian 12:

    apt-get install --no-install-recommends python3-torch openmpi-bin python3-mpi4py

Every system is measured in one way: before each call every rank writes its whole
source anew and passes a barrier, neither of which is timed; a call takes as long as
its slowest rank; a run gives the median over its calls. Of several rounds the
better quartile counts, for other programs that use the machine make a run slower,
never faster. "others" is how many cores they used during a run, as the kernel
counts.

With --namespaces the ranks are spread over two network namespaces with a pair of veths between
them, and what can run there is compared: gorun over tcp, and gloo.

With --seconds the runs end in time, and the tables hold what there is by then. A
system that fails is named and run no more; the others go on, and the exit status is 1.

mpirun keeps two ranks on cores of their own, more of them only with --bind-to core, and gorun
does so with --bind: where it makes a difference, figures stand there with ("bound") and without.

A call through mpi4py costs a part of a microsecond more than MPI's own. For small sizes compile
openmpi.c, and name the program by --mpi-program; it is then run in mpi4py's place.
"""

import argparse
import contextlib
import functools
import json
import os
import resource
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import time

import namespaces

SIZES = {"1K": (500, 100), "64K": (300, 50), "1M": (100, 20), "25M": (20, 4), "100M": (8, 2)}  # calls, calls to warm up

QUIET = 0.15  # cores that others use in a run that counts as undisturbed


def in_bytes(size):
    return int(size[:-1]) << {"K": 10, "M": 20, "G": 30}[size[-1]]


# Workers of the peers. Rank 0 prints {system: {size: microseconds}}.


def measure(calls, warmup, write, barrier, call, slowest):
    took = []
    for i in range(warmup + calls):
        write()
        barrier()
        start = time.perf_counter_ns()
        call()
        end = time.perf_counter_ns()
        if i >= warmup:
            took.append(end - start)
    return statistics.median(slowest(took)) / 1e3


def gloo_worker(sizes):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def slowest(took):
        t = torch.tensor(took)
        dist.all_reduce(t, dist.ReduceOp.MAX)
        return t.tolist()

    out = {}
    for size in sizes:
        t = torch.empty(in_bytes(size) // 4)
        out[size] = measure(*SIZES[size], lambda: t.fill_(1), dist.barrier, lambda: dist.all_reduce(t), slowest)
        assert bool((t == dist.get_world_size()).all()), "gloo: wrong sums"
    if dist.get_rank() == 0:
        print(json.dumps({"gloo": out}))


def mpi_worker(sizes):
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def slowest(took):
        t = np.array(took, dtype=np.int64)
        world.Allreduce(MPI.IN_PLACE, t, MPI.MAX)
        return t.tolist()

    out, inside, floor = {}, {}, {}
    for size in sizes:
        src, dst = np.zeros(in_bytes(size) // 4, np.float32), np.zeros(in_bytes(size) // 4, np.float32)
        s, d = [src, MPI.FLOAT], [dst, MPI.FLOAT]
        calls = SIZES[size]
        out[size] = measure(*calls, lambda: src.fill(1), world.Barrier, lambda: world.Allreduce(s, d), slowest)
        inside[size] = measure(*calls, lambda: dst.fill(1), world.Barrier, lambda: world.Allreduce(MPI.IN_PLACE, d), slowest)
        assert (dst == world.size).all(), "Open MPI: wrong sums"
        # What a call of mpi4py costs before MPI has anything to do.
        floor[size] = measure(*calls, lambda: None, world.Barrier, lambda: MPI.COMM_SELF.Allreduce(MPI.IN_PLACE, d), slowest)
    if world.rank == 0:
        print(json.dumps({"Open MPI": out, "Open MPI in place": inside, "(mpi4py alone)": floor}))


# One run of each system: a list of commands with their environment, and how to read them.


class Failed(Exception):
    """A system did not do its run."""


class OutOfTime(Exception):
    """The end that --seconds sets has come during a run."""


def finish(args, procs):
    """What each process printed, when all have ended well."""
    stuck, texts = time.monotonic() + args.patience, []
    try:
        for p in procs:
            text, _ = p.communicate(timeout=max(0, min(stuck, args.end) - time.monotonic()))
            if p.returncode != 0:
                raise Failed(f"{p.args}: exit status {p.returncode}")
            texts.append(text)
    except subprocess.TimeoutExpired:
        if time.monotonic() >= args.end:
            raise OutOfTime from None
        raise Failed(f"{p.args}: still running after {args.patience:g} s, see --patience") from None
    finally:
        stop(procs)
    return texts


def stop(procs):
    """Ends what still runs. A launcher that is asked to end also ends its ranks; one that is killed may not."""
    left = [p for p in procs if p.poll() is None]
    for p in left:
        p.terminate()
    for p in left:
        try:
            p.communicate(timeout=2)
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()


def start(command, **env):
    return subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def run_gloo(args, ranks):
    port, hosts = free_port(), args.hosts
    procs = []
    for r in range(ranks):
        host = hosts[r * len(hosts) // ranks]
        command = [*host.enter, sys.executable, __file__, "--worker", "gloo", "--sizes", args.sizes]
        procs.append(start(
            command, RANK=str(r), WORLD_SIZE=str(ranks), MASTER_ADDR=hosts[0].address, MASTER_PORT=port,
            GLOO_SOCKET_IFNAME=host.interface, OMP_NUM_THREADS="1",
        ))
    return json.loads(finish(args, procs)[0])


def run_mpi(args, ranks, bound):
    flags = ["-np", str(ranks)]
    if bound:
        flags += ["--bind-to", "core"]
    if ranks > (os.cpu_count() or 1):
        flags += ["--oversubscribe"]
    if os.geteuid() == 0:
        flags += ["--allow-run-as-root"]
    worker = [sys.executable, __file__, "--worker", "mpi", "--sizes", args.sizes]
    if args.mpi_program:
        names = {str(in_bytes(s)): s for s in args.sizes.split(",")}
        worker = [args.mpi_program, *(str(x) for n, s in names.items() for x in (n, *SIZES[s]))]
    found = json.loads(finish(args, [start(["mpirun", *flags, *worker], OMP_NUM_THREADS="1")])[0])
    if args.mpi_program:
        found = {form: {names[n]: v for n, v in times.items()} for form, times in found.items()}
    return {form + (", bound" if bound else ""): times for form, times in found.items()}


def run_gorun(args, ranks, name, *flags):
    out, hosts = {}, args.hosts
    for size in args.sizes.split(","):
        calls, warmup = SIZES[size]
        command = [args.gorun, "bench", "allreduce", "--nproc", str(ranks // len(hosts)), "--json", "-b", size, "-e", size]
        command += ["-n", str(calls), "-w", str(warmup), *flags]
        if len(hosts) > 1:
            command += ["--nnodes", str(len(hosts)), "--rdzv", f"{hosts[0].address}:{free_port()}"]
            token = secrets.token_hex(16)
            procs = [start([*h.enter, *command, "--node-rank", str(i)], GORUN_TOKEN=token) for i, h in enumerate(hosts)]
        else:
            procs = [start(command)]
        for line in finish(args, procs)[0].splitlines():
            row = json.loads(line)
            if row["wrong"] != 0:
                raise Failed(f"wrong sums: {row}")
            form = name + (" in place" if row["in_place"] else "")
            out.setdefault(form, {})[size] = row["time_us"]
    return out


def systems(args, ranks):
    """The systems to run; --only names some of them."""
    only = [w for w in args.only.split(",") if w]
    for name, run in every_system(args, ranks):
        if not only or any(w in name for w in only):
            yield run


def every_system(args, ranks):
    """All of them, the peers first: a limit of time then costs one form of gorun, not every ratio."""
    if works("gloo", "import torch.distributed as d; assert d.is_gloo_available()", "python3-torch"):
        yield "gloo", functools.partial(run_gloo, args, ranks)
    tcp = functools.partial(run_gorun, args, ranks, "gorun tcp", "--transport", "tcp", "--buffers", "private", "--bind=off")
    if args.namespaces:
        yield "gorun tcp", tcp
        return
    room = ranks <= len(os.sched_getaffinity(0))
    needs = "import shutil; assert shutil.which('mpirun'), 'there is no mpirun'"
    if works("Open MPI", needs if args.mpi_program else "import mpi4py, numpy; " + needs, "openmpi-bin python3-mpi4py"):
        yield "Open MPI", functools.partial(run_mpi, args, ranks, False)
        if room and ranks > 2:
            yield "Open MPI, bound", functools.partial(run_mpi, args, ranks, True)
    ways = [(", bound", ["--bind"])] if room else []
    ways.append(("", ["--bind=off"]))
    forms = {
        "gorun shm, arena": ["--transport", "shm", "--buffers", "arena"],
        "gorun shm, private": ["--transport", "shm", "--buffers", "private"],
        "gorun shm, arena, awaited": ["--transport", "shm", "--buffers", "arena", "--blocking"],
    }
    for bound, bind in ways:
        for name, flags in forms.items():
            yield name + bound, functools.partial(run_gorun, args, ranks, name + bound, *flags, *bind)
    yield "gorun tcp", tcp


def works(name, needs, packages):
    r = subprocess.run([sys.executable, "-c", needs], capture_output=True, text=True)
    if r.returncode == 0:
        return True
    why = (r.stderr.strip().splitlines() or ["no reason given"])[-1]
    print(f"{name} is left out: {sys.executable}: {why}; on Debian: apt-get install --no-install-recommends {packages}, and /usr/bin/python3")
    return False


# The machine's other work.


def busy():
    """Seconds that all cores have worked, and those of our own children."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = v
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


def wait_for_quiet(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = busy()[0]
        time.sleep(0.25)
        if busy()[0] - before < 0.05:
            return


def table(title, sizes, rows):
    print(f"\n{title}\n\n| | " + " | ".join(sizes) + " |\n|---" + "|---" * len(sizes) + "|")
    for name, cells in rows:
        print(f"| {name} | " + " | ".join(cells) + " |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gorun", default="gorun", help="the binary (default: gorun in PATH)")
    p.add_argument("--mpi-program", help="openmpi.c, compiled: mpicc -O2 -o /tmp/openmpi docs/benchmarks/openmpi.c")
    p.add_argument("--ranks", default="2,4")
    p.add_argument("--sizes", default=",".join(SIZES), help=f"some of {','.join(SIZES)}")
    p.add_argument("--only", default="", help="run these systems alone: words of their names, such as tcp,gloo")
    p.add_argument("--namespaces", action="store_true", help="spread the ranks over two network namespaces; needs root and ip")
    p.add_argument("--rounds", type=int, default=8)
    p.add_argument("--quiet", type=float, default=5, help="before a run wait at most so many seconds until the cores are idle")
    p.add_argument("--seconds", type=float, default=float("inf"), help="end the runs after so many seconds (default: when they are done)")
    p.add_argument("--patience", type=float, default=600, help="a program that runs longer, in seconds, has failed (default: %(default)s)")
    p.add_argument("--worker", choices=["gloo", "mpi"], help=argparse.SUPPRESS)
    args = p.parse_args()
    sizes = args.sizes.split(",")
    if unknown := [s for s in sizes if s not in SIZES]:
        p.error(f"--sizes {','.join(unknown)}: want some of {','.join(SIZES)}")
    args.end = time.monotonic() + args.seconds
    if args.worker:
        return {"gloo": gloo_worker, "mpi": mpi_worker}[args.worker](sizes)
    if args.namespaces and any(int(r) % 2 for r in args.ranks.split(",")):
        p.error(f"--namespaces --ranks {args.ranks}: two namespaces want an even number of ranks")
    if not shutil.which(args.gorun):
        p.error(f"--gorun {args.gorun}: no such program; go build -o /tmp/gorun ./launcher/gorun")

    with open("/proc/cpuinfo") as f:
        model = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "unknown processor")
    print(f"{time.strftime('%Y-%m-%d %H:%M')}  {os.cpu_count()} x {model}, fp32 sum, microseconds, {args.rounds} rounds{', two namespaces' if args.namespaces else ''}")
    try:
        with namespaces.pair() if args.namespaces else contextlib.nullcontext([namespaces.HERE]) as args.hosts:
            failures = compare(args, sizes)
    except namespaces.Unavailable as e:
        sys.exit(f"--namespaces: {e}")
    sys.exit(1 if failures else 0)


def compare(args, sizes):
    """Runs and reports all, for each number of ranks. Returns how many runs failed."""
    failures = 0
    for ranks in map(int, args.ranks.split(",")):
        runs, seen, quiet = list(systems(args, ranks)), {}, {}
        try:
            for k in range(args.rounds):
                failures += one_round(args, f"ranks {ranks} round {k + 1}", runs, k, seen, quiet)
        except OutOfTime:
            print(f"ranks {ranks} round {k + 1}: the {args.seconds:g} s of --seconds are over")
        report(ranks, sizes, seen, quiet)
    return failures


def one_round(args, title, runs, first, seen, quiet):
    """Runs each system once, from the first on, and keeps its times. Returns how many failed; runs loses these."""
    failed = []
    for i in range(len(runs)):
        run = runs[(i + first) % len(runs)]
        wait_for_quiet(args.quiet)
        (all0, own0), t0 = busy(), time.monotonic()
        try:
            found = run()
        except Failed as e:
            print(f"{title} FAILED, left out from here: {e}", flush=True)
            failed.append(run)
            continue
        (all1, own1), t1 = busy(), time.monotonic()
        others = max(0, all1 - all0 - (own1 - own0)) / (t1 - t0)
        for name, times in found.items():
            cells = "  ".join(f"{s} {v:.2f}" for s, v in times.items())
            print(f"{title} others {others:.2f}  {name}: {cells}", flush=True)
            for s, v in times.items():
                seen.setdefault(name, {}).setdefault(s, []).append(v)
                if others < QUIET:
                    quiet.setdefault(name, {}).setdefault(s, []).append(v)
    runs[:] = [run for run in runs if run not in failed]
    return len(failed)


def report(ranks, sizes, seen, quiet):
    best = {n: {s: sorted(v)[len(v) // 4] for s, v in t.items()} for n, t in seen.items()}
    table(f"{ranks} ranks, better quartile, µs", sizes, [(n, [f"{t[s]:.2f}" for s in sizes]) for n, t in sorted(best.items())])
    rows = [(f"{n} ({len(t[sizes[0]])} runs)", [f"{statistics.median(t[s]):.2f}" for s in sizes]) for n, t in sorted(quiet.items())]
    table(f"{ranks} ranks, runs with others below {QUIET} cores alone, median, µs", sizes, rows)
    ours = sorted(n for n in best if n.startswith("gorun"))
    mpi = [n for n in best if n.startswith("Open MPI")]
    gloo = [n for n in best if n == "gloo"]
    for title, peers in {"gloo": gloo, "Open MPI": mpi, "the better peer": gloo and mpi and gloo + mpi}.items():
        if peers and ours:
            rows = [(n, [f"{min(best[q][s] for q in peers) / best[n][s]:.2f}" for s in sizes]) for n in ours]
            table(f"{ranks} ranks, time of {title} / time of gorun", sizes, rows)


if __name__ == "__main__":
    main()
