"""What the programs of a cluster have written, also those that are gone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scalable.errors import ClusterError
from scalable.records import ClusterDirectory

#: Of each log at most so much of its end is read.
LONGEST_BYTES = 1_000_000
POLL_S = 0.2
_SUFFIX = ".log"


@dataclass(frozen=True)
class LogFile:
    """Output of one program.

    Attributes
    ----------
    worker
        Name of the worker; or ``scheduler``, or ``manager-ID``.
    tag
        Its pool, None for the others.
    path
        The file.
    """

    worker: str
    tag: str | None
    path: Path


def log_files(
    directory: ClusterDirectory, *, pool: str | None = None, worker: str | None = None
) -> list[LogFile]:
    """Logs of a cluster.

    Parameters
    ----------
    directory
        The cluster.
    pool
        Only workers of this tag.
    worker
        Only this one; ``scheduler`` and ``manager-ID`` are given only when they are asked for.

    Raises
    ------
    ClusterError
        When there is no such pool or worker.
    """
    record = directory.record()
    services = [LogFile(p.stem, None, p) for p in sorted(directory.logs_dir.glob(f"*{_SUFFIX}"))]
    if worker is not None and (meant := [s for s in services if s.worker == worker]):
        return meant
    said = directory.scheduler() or {}
    parent = record.log_dir or said.get("log_dir")
    tags = (*record.tags, *_pool_tags(directory))
    paths = sorted(Path(parent).glob(f"*{_SUFFIX}"), key=_changed) if parent else []
    workers = [LogFile(p.stem, _tag_of(p.stem, tags), p) for p in paths]
    found = [
        file
        for file in workers
        if file.tag is not None
        and (pool is None or file.tag == pool)
        and (worker is None or file.worker == worker)
    ]
    if pool is not None and pool not in tags:
        raise ClusterError(
            f"cluster {record.name!r} has no pool {pool!r}",
            hint=f"there are: {', '.join(dict.fromkeys(tags))}",
        )
    if worker is not None and not found:
        known = ", ".join(file.worker for file in (*workers, *services)) or "none"
        raise ClusterError(f"there is no log of worker {worker!r}", hint=f"there are: {known}")
    return found


def _pool_tags(directory: ClusterDirectory) -> tuple[str, ...]:
    return tuple((directory.status() or {"pools": {}})["pools"])


def _tag_of(worker: str, tags: tuple[str, ...]) -> str | None:
    """A worker's name begins with its tag; of several the longest is meant."""
    own = [tag for tag in tags if worker.startswith(f"{tag}-")]
    return max(own, key=len, default=None)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read_log(path: Path) -> str:
    """The end of a log, at most a million bytes; empty where it is gone."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LONGEST_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def follow_lines(
    directory: ClusterDirectory, *, pool: str | None = None, worker: str | None = None
) -> Iterator[tuple[str, str]]:
    """Worker and line, of what is there and what is added, until the cluster is gone."""
    read: dict[Path, int] = {}
    while directory.path.exists():
        try:
            files = log_files(directory, pool=pool, worker=worker)
        except FileNotFoundError:
            return
        for file in files:
            yield from ((file.worker, line) for line in _new_lines(file.path, read))
        time.sleep(POLL_S)


def _new_lines(path: Path, read: dict[Path, int]) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(read.get(path, 0))
            data = file.read(LONGEST_BYTES)
    except OSError:
        return []
    whole = data.rpartition(b"\n")[0] + b"\n" if b"\n" in data else b""
    read[path] = read.get(path, 0) + len(whole)
    return whole.decode(errors="replace").splitlines()
