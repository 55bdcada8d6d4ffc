"""Two hosts for peers.py: network namespaces of this machine, joined by a pair of veths."""

import contextlib
import os
import subprocess
from dataclasses import dataclass


@dataclass
class Host:
    enter: list  # what a command begins with to run there
    address: str
    interface: str


HERE = Host([], "127.0.0.1", "lo")


class Unavailable(Exception):
    """This machine or this user cannot make namespaces."""


@contextlib.contextmanager
def pair():
    """Makes the two hosts, and takes them away at the end. MTU and rate are the kernel's defaults."""
    names = [f"peers{os.getpid()}{x}" for x in "ab"]
    hosts = [Host(["ip", "netns", "exec", n], f"10.84.0.{i + 1}", f"veth{i}") for i, n in enumerate(names)]
    with contextlib.ExitStack() as made:
        for n in names:
            ip("netns", "add", n)
            made.callback(ip, "netns", "del", n)
        (a, b), (x, y) = names, (h.interface for h in hosts)
        ip("link", "add", x, "netns", a, "type", "veth", "peer", "name", y, "netns", b)
        for n, h in zip(names, hosts):
            ip("-n", n, "link", "set", "lo", "up")
            ip("-n", n, "addr", "add", h.address + "/24", "dev", h.interface)
            ip("-n", n, "link", "set", h.interface, "up")
        yield hosts


def ip(*args):
    try:
        r = subprocess.run(["ip", *args], capture_output=True, text=True)
    except FileNotFoundError as e:
        raise Unavailable(f"there is no ip command: {e}; on Debian: apt-get install iproute2") from None
    if r.returncode != 0:
        raise Unavailable(f"ip {' '.join(args)}: {r.stderr.strip()}")
