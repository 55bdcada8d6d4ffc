#!/usr/bin/env python3
"""Adds up a trace.json by operation: milliseconds and calls a step, on rank 0.

    gorun --set log.trace=3 --set output=out configs/qwen2.5-0.5b-bench.yaml
    python3 docs/benchmarks/optime.py out/trace.json
"""
import collections
import json
import sys

spans = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
total, calls = collections.Counter(), collections.Counter()
for e in spans:
    total[e["name"]] += e.get("dur", 0)
    calls[e["name"]] += 1
steps = calls["adamw"] or 1
for name, micros in total.most_common():
    print(f"{micros / steps / 1000:9.3f} ms {calls[name] / steps:7.1f}x  {name}")
