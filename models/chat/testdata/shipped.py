#!/usr/bin/env python3
"""Writes shipped.json: digests of what the templates of a wheel of trl make.

    pip download --no-deps trl==1.16.0
    python3 shipped.py trl-1.16.0-py3-none-any.whl        needs jinja2 3.1

Each template is rendered over conversations.json, without and with the prompt for
an answer. The digest of a template is over all of that: texts, places of the
assistant's text, and which conversations it refuses. Nothing of the wheel is kept.
With --show TEMPLATE the renders of one template are printed instead.
"""
import hashlib
import json
import os
import sys
import zipfile

from golden import HERE, reference

FOLDER = "trl/chat_templates/"


def renders(env, source, conversations):
    for name, c in sorted(conversations.items()):
        for prompt in (False, True):
            yield name, prompt, reference.render(env, source, {
                "bos_token": "<s>",
                "eos_token": "</s>",
                "messages": c["messages"],
                "tools": c.get("tools"),
                "documents": None,
                "add_generation_prompt": prompt,
                **c.get("vars", {}),
            })


def digest(env, source, conversations):
    h, refused, total = hashlib.sha256(), 0, 0
    for name, prompt, made in renders(env, source, conversations):
        total += 1
        if "error" in made:
            refused += 1
            line = json.dumps([name, prompt])
        else:
            line = json.dumps([name, prompt, made["text"], made.get("generated", [])], ensure_ascii=False)
        h.update(line.encode() + b"\n")
    return {"renders": total, "refused": refused, "sha256": h.hexdigest()}


def main():
    env = reference.environment()
    conversations = json.load(open(os.path.join(HERE, "conversations.json"), encoding="utf-8"))
    del conversations["number as content"]  # refused before a template sees it
    wheel = zipfile.ZipFile(sys.argv[1])
    sources = {
        name[len(FOLDER):]: wheel.read(name).decode()
        for name in sorted(wheel.namelist())
        if name.startswith(FOLDER) and name.endswith(".jinja")
    }
    if sys.argv[2:3] == ["--show"]:
        for made in renders(env, sources[sys.argv[3]], conversations):
            print(*made)
        return
    shipped = {
        "wheel": os.path.basename(sys.argv[1]),
        "templates": {name: digest(env, source, conversations) for name, source in sources.items()},
    }
    with open(os.path.join(HERE, "shipped.json"), "w", encoding="utf-8") as f:
        json.dump(shipped, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
