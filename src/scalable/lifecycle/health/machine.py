"""Checks of this machine: directories, clock, ports, limits and terminal."""

from __future__ import annotations

import locale
import os
import resource
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scalable.lifecycle.health.rows import Row
from scalable.units import format_bytes, format_duration

#: Free bytes of a file system below which there is a warning, and below which nothing works.
LITTLE_SPACE, NO_SPACE = 2**30, 50 * 2**20
#: Seconds by which the clock of a file system may differ from that of this machine.
SKEW_S, GREAT_SKEW_S = 2.0, 60.0
#: Numbers of files that may be open below which there is a warning, and below which it is too few.
FEW_FILES, TOO_FEW_FILES = 1024, 256
#: Programs that run containers.
CONTAINER_PROGRAMS = ("apptainer", "docker", "podman")
#: Types of file systems that several machines usually see.
SHARED = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs", "orangefs", "9p"}
)


def directory_rows(what: str, path: Path, *, private: bool) -> Iterator[Row]:
    """Yield the rows about a directory that this package writes to.

    Parameters
    ----------
    what, path
        Name of the directory, and its path; it need not exist.
    private
        Whether nobody else may read it, because it contains credentials.
    """
    existing = next((p for p in (path, *path.parents) if p.exists()), Path("/"))
    if not existing.is_dir():
        yield Row(what, "fail", f"{existing} is not a directory", f"mv {existing} {existing}.old")
        return
    yield _permissions(what, path, existing, private=private)
    yield from _written(what, existing)
    free = shutil.disk_usage(existing).free
    yield space_row(f"disk of the {what}", existing, free)


def _permissions(what: str, path: Path, existing: Path, *, private: bool) -> Row:
    if existing != path:
        return Row(what, "ok", f"{path} does not exist yet; it is made when it is needed")
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        owner = f"{path} belongs to user {status.st_uid}, not to user {os.geteuid()}"
        return Row(what, "fail", owner, f"chown {os.geteuid()} {path}")
    if private and mode & 0o077:
        return Row(what, "fail", f"{path} has mode {mode:04o}, not 0700", f"chmod 700 {path}")
    return Row(what, "ok", f"{path} (mode {mode:04o})")


def _written(what: str, directory: Path) -> Iterator[Row]:
    """Yield whether a directory can be written to, and how far its clock differs."""
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".scalable-doctor-") as file:
            before = time.time()
            os.utime(file.fileno())
            made = os.fstat(file.fileno()).st_mtime
    except OSError as error:
        fact = f"{directory} cannot be written to: {error.strerror}"
        yield Row(f"writing to the {what}", "fail", fact, f"chmod u+rwx {directory}")
        return
    yield Row(f"writing to the {what}", "ok", f"{directory} can be written to")
    yield clock_row(f"clock of the {what}", made - before)


def clock_row(what: str, skew_s: float) -> Row:
    """Return the row about the difference between a file system's clock and this machine's."""
    size = abs(skew_s)
    if size < SKEW_S:
        return Row(what, "ok", f"its times differ from this machine's by less than {SKEW_S:g} s")
    way = "later" if skew_s > 0 else "earlier"
    fact = f"its times are {format_duration(size)} {way} than this machine's"
    mend = "set the clocks by NTP: timedatectl set-ntp true"
    return Row(what, "fail" if size > GREAT_SKEW_S else "warn", fact, mend)


def space_row(what: str, path: Path, free: int) -> Row:
    """Return the row about the free bytes of a file system."""
    fact = f"{format_bytes(free)} are free at {path}"
    if free >= LITTLE_SPACE:
        return Row(what, "ok", fact)
    mend = f"remove what is not needed: du -xh -d 2 {path} | sort -h | tail"
    return Row(what, "fail" if free < NO_SPACE else "warn", fact, mend)


def file_system_of(path: Path, mounts: str) -> str:
    """Return the type of the file system of a path; "" if it is not known.

    Parameters
    ----------
    path
        Absolute path.
    mounts
        Text of ``/proc/self/mountinfo``.
    """
    best, kind = "", ""
    for line in mounts.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5 or not right:
            continue
        point = fields[4].replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def shared_row(path: Path, mounts: str) -> Row:
    """Return the row about a directory that the machines of a target have to see too."""
    kind = file_system_of(path, mounts)
    name = "shared file system"
    if kind in SHARED or kind.startswith("fuse."):
        return Row(name, "ok", f"{path} is on {kind}, which other machines can see")
    fact = f"{path} is on {kind or 'an unknown file system'}, which other machines may not see"
    return Row(name, "warn", fact, "let XDG_STATE_HOME name a directory that all nodes see")


def limit_row(soft: int) -> Row:
    """Return the row about the number of files that a process may have open."""
    fact = f"{soft} files may be open at once"
    if soft in (resource.RLIM_INFINITY, -1) or soft >= FEW_FILES:
        return Row("open files", "ok", fact if soft >= 0 else "any number of files may be open")
    return Row("open files", "fail" if soft < TOO_FEW_FILES else "warn", fact, "ulimit -n 4096")


def port_row(host: str = "127.0.0.1") -> Row:
    """Return the row about free ports: one is opened and closed again."""
    try:
        with socket.socket() as one:
            one.bind((host, 0))
            port = one.getsockname()[1]
    except OSError as error:
        mend = "end programs that hold ports: ss -ltnp"
        return Row("free ports", "fail", f"no port of {host} can be opened: {error.strerror}", mend)
    return Row("free ports", "ok", f"a port of {host} can be opened, for example {port}")


def terminal_row() -> Row:
    """Return the row about the encoding of texts."""
    encoding = locale.getpreferredencoding(False)
    if encoding.lower().replace("-", "") == "utf8":
        return Row("locale", "ok", f"texts are {encoding}")
    return Row("locale", "warn", f"texts are {encoding}, not UTF-8", "export LC_ALL=C.UTF-8")


def program_row(provider: str, program: str, *, needed: bool) -> Row:
    """Return the row about a program that a provider calls."""
    found = shutil.which(program)
    if found:
        return Row(f"{provider}: {program}", "ok", found)
    fact = "it is not on the PATH"
    if needed:
        mend = "run on a machine that has it, or add its directory to PATH"
        return Row(f"{provider}: {program}", "fail", f"{fact}; the target needs it", mend)
    return Row(f"{provider}: {program}", "ok", f"{fact}; only targets of {provider} need it")


def containers_row() -> Row:
    """Return the row about the programs that run containers on this machine."""
    found = [name for name in CONTAINER_PROGRAMS if shutil.which(name)]
    if found:
        return Row("containers", "ok", f"{', '.join(found)} can run them here")
    names = ", ".join(CONTAINER_PROGRAMS)
    return Row(
        "containers",
        "ok",
        f"none of {names} is on the PATH; only components with an image need one",
    )


def interface_row(name: str) -> Row:
    """Return the row about a network interface that a target names."""
    known = sorted(each for _, each in socket.if_nameindex())
    if name in known:
        return Row("interface", "ok", f"{name} exists here")
    fact = f"{name} does not exist here; there are {', '.join(known)}"
    return Row("interface", "warn", fact, "set the target's interface, unless only nodes have it")
