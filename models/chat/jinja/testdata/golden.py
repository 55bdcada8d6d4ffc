#!/usr/bin/env python3
"""Writes golden.json: what the reference implementation makes of constructs.txt.

    python3 golden.py        needs jinja2 3.1 (Debian: python3-jinja2)

Each part of constructs.txt is a template, rendered over context.json with the
settings that Hugging Face's libraries use: trim_blocks, lstrip_blocks, the
sandbox, loop controls, the functions raise_exception and strftime_now, the filter
tojson, and blocks {% generation %} whose place in the text is noted (in
characters there, in bytes here). A template that fails leaves an error.
"""
import datetime
import json
import os

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = os.path.dirname(os.path.abspath(__file__))


class Generation(jinja2.ext.Extension):
    """{% generation %}: puts marks around the text, to be cut out again below."""

    tags = {"generation"}
    BEGIN, END = "\ue000", "\ue001"

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller):
        return self.BEGIN + caller() + self.END


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    now = datetime.datetime(2024, 7, 3, 9, 5, 6)
    env.globals["strftime_now"] = now.strftime
    return env


def render(env, source, variables):
    try:
        marked = env.from_string(source).render(**variables)
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}
    text, spans, start = b"", [], 0
    for c in marked:
        if c == Generation.BEGIN:
            start = len(text)
        elif c == Generation.END:
            if len(text) > start:
                spans.append([start, len(text)])
        else:
            text += c.encode()
    made = {"text": text.decode()}
    if spans:
        made["generated"] = spans
    return made


def parts(path):
    """The parts of a file with lines such as -- name --, each without its last newline's doubling."""
    made, name = {}, None
    for line in open(path, encoding="utf-8", newline=""):
        if line.startswith("-- ") and line.rstrip("\n").endswith(" --"):
            name = line.rstrip("\n")[3:-3]
            assert name not in made, name
            made[name] = ""
        elif name is not None:
            made[name] += line
    return made


def main():
    env = environment()
    variables = json.load(open(os.path.join(HERE, "context.json"), encoding="utf-8"))
    golden = {
        name: render(env, source, variables)
        for name, source in parts(os.path.join(HERE, "constructs.txt")).items()
    }
    with open(os.path.join(HERE, "golden.json"), "w", encoding="utf-8") as f:
        json.dump(golden, f, ensure_ascii=False, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
