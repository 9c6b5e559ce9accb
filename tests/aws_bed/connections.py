"""TCP connections to machines, as the kernel knows them: who has them, and whether they may be."""

import contextlib
import os
import socket
from pathlib import Path

ESTABLISHED, LISTENS = "01", "0A"


def place(text):
    """Return address and port of a field of /proc/net/tcp."""
    address, port = text.split(":")
    return socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)


def table():
    """Yield own place, other place, state and inode of all sockets."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    for line in lines:
        fields = line.split()
        yield place(fields[1]), place(fields[2]), fields[3], fields[9]


def parents():
    """Return process -> parent of all processes."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                found[int(entry.name)] = int(stat[1])
    return found


def owners(roots):
    """Return inode of a socket -> machine, for all processes below `roots` (process -> machine)."""
    above = parents()
    found = {}
    for process in above:
        top = process
        while top and top not in roots:
            top = above.get(top, 0)
        if not top:
            continue
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    name = os.readlink(entry.path)
                    if name.startswith("socket:["):
                        found[name[8:-1]] = roots[top]
    return found


def connections(machines, roots):
    """Return (source machine or None, target machine, port) of all connections to machines.

    `machines` is address -> machine. Connections that a machine has to itself are left out.
    """
    rows = list(table())
    listening = {own for own, _, state, _ in rows if state == LISTENS}
    owned = owners(roots)
    found = set()
    for _, other, state, inode in rows:
        if state == ESTABLISHED and other in listening and other[0] in machines:
            source, target = owned.get(inode), machines[other[0]]
            if source != target:
                found.add((source, target, other[1]))
    return sorted(found, key=str)
