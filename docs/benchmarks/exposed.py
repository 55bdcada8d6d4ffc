#!/usr/bin/env python3
"""Where the exposed communication of a job goes, from the trace.json of ranks that
share one clock (one host).

    gorun --nproc 2 configs/quickstart.yaml --set log.trace=40
    python3 docs/benchmarks/exposed.py runs/quickstart/trace.json

From the end of its backward pass until it goes on, a rank waits, one after another,
for
    skew     the slowest rank, which still computes;
    start    every rank to enter the last bucket's reduction;
    reduce   the bytes of the last bucket;
    resume   its compute stream to wake up.
The figures are microseconds over all ranks and steps of the trace.
"""

import json
import statistics
import sys


def streams(path):
    """Spans (begin, end, work) of each (rank, stream), in order of begin."""
    with open(path) as f:
        events = json.load(f)
    if isinstance(events, dict):
        events = events["traceEvents"]
    name = {(e["pid"], e.get("tid", 0)): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    spans = {}
    for e in events:
        if e["ph"] == "X":
            begin = e.get("ts", 0)
            key = e["pid"], name[e["pid"], e.get("tid", 0)]
            spans.setdefault(key, []).append((begin, begin + e.get("dur", 0), e["name"]))
    for list_ in spans.values():
        list_.sort()
    return spans


def steps(spans):
    """For each step the ranks' (wait, reduction): the first of the two waits of a
    step's end, and the last reduction that it waited for."""
    ranks = sorted({rank for rank, _ in spans})
    waits = [[s for s in spans[r, "compute"] if s[2] == "wait comm"][::2] for r in ranks]
    for k in range(min(map(len, waits))):
        row = []
        for i, r in enumerate(ranks):
            wait = waits[i][k]
            before = [s for s in spans[r, "comm"] if s[2] == "AllReduce" and s[0] < wait[1] and s[1] <= wait[1] + 1]
            row.append((wait, max(before, key=lambda s: s[1])))
        yield row


def parts(row):
    """The parts of each rank's wait. They add up to it."""
    late = max(wait[0] for wait, _ in row)
    entered = max(reduction[0] for _, reduction in row)
    for wait, reduction in row:
        at, out = wait[0], []
        for mark in (late, entered, reduction[1], wait[1]):
            mark = min(max(mark, at), wait[1])
            out.append(mark - at)
            at = mark
        yield [wait[1] - wait[0]] + out


def main():
    rows = [p for row in steps(streams(sys.argv[1])) for p in parts(row)]
    print(f"{'':8}{'exposed':>9}{'skew':>9}{'start':>9}{'reduce':>9}{'resume':>9}   ({len(rows)} waits)")
    for label, value in (
        ("quarter", lambda v: sorted(v)[len(v) // 4]),
        ("median", lambda v: sorted(v)[len(v) // 2]),
        ("mean", statistics.mean),
    ):
        print(f"{label:8}" + "".join(f"{value([r[i] for r in rows]):9.0f}" for i in range(5)))


main()
