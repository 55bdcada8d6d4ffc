#!/usr/bin/env python3
"""Writes golden.json: each template of this folder over each of conversations.json.

    python3 golden.py        needs jinja2 3.1 (Debian: python3-jinja2)

The templates use the constructs of those that come with chat models; the words are
ours. ../jinja/testdata/golden.py says under which settings they are rendered.
"""
import glob
import importlib.util
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("reference", os.path.join(HERE, "../jinja/testdata/golden.py"))
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)


def main():
    env = reference.environment()
    conversations = json.load(open(os.path.join(HERE, "conversations.json"), encoding="utf-8"))
    golden = {}
    for path in sorted(glob.glob(os.path.join(HERE, "*.jinja"))):
        source = open(path, encoding="utf-8").read()
        golden[os.path.basename(path)] = {
            name: reference.render(env, source, {
                "bos_token": "<s>",
                "eos_token": "</s>",
                "messages": c["messages"],
                "tools": c.get("tools"),
                "documents": None,
                "add_generation_prompt": c.get("add_generation_prompt", False),
                **c.get("vars", {}),
            })
            for name, c in conversations.items()
        }
    with open(os.path.join(HERE, "golden.json"), "w", encoding="utf-8") as f:
        json.dump(golden, f, ensure_ascii=False, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
