"""`Checkpoints`: directories that keep a task's state from one attempt to the next.

Each attempt takes over the previous directory by a rename, so two attempts never write to one path.
The later attempt wins without a lock, since NFS might break locks. Other clusters may run an equal
cached task at the same time: then the later attempt starts with a copy.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from scalable.cache.entries import make_own, touched
from scalable.errors import ClusterError
from scalable.liveness import identify_process, is_alive
from scalable.settings import results_dir
from scalable.storage import scheme_of

#: Group of the checkpoints of cached tasks, whatever their cluster.
REMEMBERED: Final = "remembered"
# Layout, on the workers' shared file system, below a directory of this user:
#   checkpoints/<cluster>/<task>/<attempt>-<random>/
#   checkpoints/remembered/<key>/<attempt>-<random>/
# Next to the directory of an attempt that runs is its mark, ``.<attempt>-<random>``: a file that
# names the process, which touches it.
_DIRECTORY: Final = "checkpoints"
#: Prefix of the names of directories that are being made or removed.
_HIDDEN: Final = "."
_TRY = re.compile(r"(\d+)-[0-9a-f]{16}")
#: Number of attempts to take a directory that another attempt of the task may take first.
_ATTEMPTS: Final = 20
#: Seconds between two touches of a mark, and after which a mark counts as left by a killed process.
#: Over NFS, a file's time may become visible late, and a process may be paused for a while.
TOUCHED_S: Final = 10.0
STALE_S: Final = 60.0


def checkpoint_directory(url: str | None) -> Path:
    """Return a result store's checkpoint directory, or the user's own for None or a bucket."""
    if url is not None and scheme_of(url) == "file":
        return Path(url.removeprefix("file://"))
    return results_dir()


@dataclass(frozen=True)
class CheckpointSizes:
    """Number of checkpoints and their size in bytes."""

    number: int = 0
    size: int = 0


class Checkpoint:
    """Directory of one attempt of a task, marked as in use until it ends."""

    def __init__(self, path: Path, clock: Path) -> None:
        self._path, self._clock = path, clock
        _marks.add(_mark_of(path))

    @property
    def path(self) -> Path:
        """Return the directory, or raise ClusterError if a later attempt has taken it over."""
        if not self._path.is_dir():
            raise ClusterError(
                f"this attempt no longer owns the checkpoint {self._path}: a later attempt of the "
                "task has taken it over, or it was removed",
                hint="its worker was considered lost; the later attempt continues the work",
            )
        return self._path

    def end(self, *, succeeded: bool) -> None:
        """Remove the mark and, if the attempt succeeded, the directories that are not in use."""
        _marks.remove(_mark_of(self._path))
        if succeeded:
            with suppress(OSError):  # another attempt is in it, or the file system is read-only
                for _, path in _tries(self._path.parent):
                    if path == self._path or not _is_used(path, self._clock):
                        _removed(path, self._path.parents[2])
                self._path.parent.rmdir()


class Checkpoints:
    """Checkpoints below one directory of results."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._root = directory / _DIRECTORY
        self._clock = directory / "clock"

    def prepare(self, group: str) -> None:
        """Create a group's directory, private to this user, or raise ClusterError."""
        try:
            make_own(self._directory)
            (self._root / group).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root.chmod(0o700)
        except OSError as error:
            raise ClusterError(
                f"cannot keep checkpoints in {self._root}: {error.strerror}",
                hint="set local_cache of the project to a directory that you can write to",
            ) from error

    def begin(self, group: str, call: str) -> Checkpoint:
        """Start an attempt of a task with the files that the previous attempt has left.
        ``call`` identifies the task within its group. Of a cached task, an attempt that still runs
        may be another cluster's, and keeps its files. Raises ClusterError if the group's directory
        is missing, for example because this process has another file system.
        """
        if not (self._root / group).is_dir():
            raise ClusterError(
                f"the checkpoint directory {self._root} does not exist on {socket.gethostname()}",
                hint="set local_cache of the project to a directory that all workers can access, "
                "and "
                "mount it in components that have an image",
            )
        place = self._root / group / sha256(call.encode("utf-8", "surrogatepass")).hexdigest()
        token = secrets.token_hex(8)
        fault: OSError | None = None
        for _ in range(_ATTEMPTS):
            number, latest = max(_tries(place), default=(0, None))
            own = place / f"{number + 1}-{token}"
            try:
                if latest is None:
                    self._make(place, own.name)
                elif group == REMEMBERED and _is_used(latest, self._clock):
                    self._copy(latest, own)
                else:
                    latest.rename(own)
            except OSError as error:  # usually another attempt was faster, or succeeded
                fault = error
            # Over NFS, the reply to a rename can be lost, and its repetition then fails.
            if own.is_dir():
                if latest is not None and not latest.is_dir():
                    _mark_of(latest).unlink(missing_ok=True)
                return Checkpoint(own, self._clock)
        raise ClusterError(
            f"cannot create the checkpoint {place}: {fault}",
            hint="free disk space, or wait until no other cluster runs the same task",
        ) from fault

    def remove(self, group: str) -> None:
        if (self._root / group).is_dir():
            _removed(self._root / group, self._root)

    def collect(self, max_age_s: float, *, dry_run: bool = False) -> CheckpointSizes:
        """Delete checkpoints unused and unchanged for ``max_age_s``, by the file server's clock."""
        if not self._root.is_dir():
            return CheckpointSizes()
        before = touched(self._clock) - max_age_s
        number = size = 0
        for place in [*self._root.glob(f"[!{_HIDDEN}]*/*"), *self._root.glob(f"{_HIDDEN}*")]:
            found, changed = _measured(place)
            used = any(_is_used(path, self._clock) for _, path in _tries(place))
            if used or changed >= before:
                continue
            number, size = number + 1, size + found
            if not dry_run:
                _removed(place, self._root)
                with suppress(OSError):  # the group of a stopped cluster is empty
                    place.parent.rmdir()
        return CheckpointSizes(number, size)

    def _make(self, place: Path, name: str) -> None:
        """Create a task's and its first attempt's directory in one rename. May raise OSError."""
        new = self._root / f"{_HIDDEN}{secrets.token_hex(8)}"
        new.mkdir(mode=0o700)
        try:
            (new / name).mkdir(mode=0o700)
            new.rename(place)
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _copy(self, path: Path, own: Path) -> None:
        """Create an attempt's directory with the files of another one, or raise OSError."""
        new = self._root / f"{_HIDDEN}{secrets.token_hex(8)}"
        try:
            shutil.copytree(path, new, symlinks=True)
            new.rename(own)
        finally:
            shutil.rmtree(new, ignore_errors=True)


class _Marks:
    """Marks of this process, which a thread touches while there are any."""

    def __init__(self) -> None:
        self._marks: set[Path] = set()
        self._process = 0
        self._lock = threading.Lock()

    def add(self, mark: Path) -> None:
        """Write a mark. Without it, a pruning or another cluster may take the directory."""
        with suppress(OSError):
            mark.write_text(json.dumps(identify_process()), encoding="utf-8")
        if self._process not in (0, os.getpid()):  # forked since: a thread may have had the lock
            self._marks, self._process, self._lock = set(), 0, threading.Lock()
        with self._lock:
            self._marks.add(mark)
            if not self._process:
                self._process = os.getpid()
                threading.Thread(target=self._touch, name="scalable-marks", daemon=True).start()

    def remove(self, mark: Path) -> None:
        self._marks.discard(mark)
        with suppress(OSError):
            mark.unlink()

    def _touch(self) -> None:
        while True:
            time.sleep(TOUCHED_S)
            with self._lock:
                marks = list(self._marks)
                if not marks:
                    self._process = 0
                    return
            for mark in marks:
                with suppress(OSError):  # a later attempt has taken the directory over
                    os.utime(mark)


_marks = _Marks()


def _mark_of(path: Path) -> Path:
    return path.with_name(f"{_HIDDEN}{path.name}")


def _is_used(path: Path, clock: Path) -> bool:
    """Return whether an attempt runs, as far as this process can tell."""
    mark = _mark_of(path)
    try:
        age_s = touched(clock) - mark.stat().st_mtime
        return age_s < STALE_S and is_alive(json.loads(mark.read_text("utf-8"))) is not False
    except (OSError, ValueError, AttributeError):
        return False


class CheckpointedTask:
    """Running task with a cached result. Its checkpoint is named by the cache key."""

    def __init__(self, key: str, url: str) -> None:
        self.key, self.url = key, url
        self._checkpoint: Checkpoint | None = None

    def path(self, begin: Callable[[], Checkpoint]) -> Path:
        """Return the directory of this attempt, which ``begin`` creates at the first use."""
        if self._checkpoint is None:
            self._checkpoint = begin()
        return self._checkpoint.path

    def end(self, *, succeeded: bool) -> None:
        if self._checkpoint is not None:
            self._checkpoint.end(succeeded=succeeded)


_running: ContextVar[CheckpointedTask | None] = ContextVar("scalable_remembered_call", default=None)


def cached_call() -> CheckpointedTask | None:
    """Return the innermost cached task running in this thread, or None."""
    return _running.get()


@contextmanager
def running_cached(key: str, url: str) -> Iterator[None]:
    """Run a ``with`` block as a task with a cached result."""
    call = CheckpointedTask(key, url)
    token = _running.set(call)
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        _running.reset(token)
        call.end(succeeded=succeeded)


def _tries(place: Path) -> list[tuple[int, Path]]:
    """Return the number and directory of each attempt, the latest last."""
    with suppress(FileNotFoundError, NotADirectoryError):
        found = ((_TRY.fullmatch(name), place / name) for name in os.listdir(place))  # noqa: PTH208
        return sorted((int(match[1]), path) for match, path in found if match)
    return []


def _removed(path: Path, root: Path) -> None:
    """Delete a directory, renamed first so that no part of it is visible. May be missing."""
    gone = root / f"{_HIDDEN}{secrets.token_hex(8)}"
    with suppress(FileNotFoundError):
        path.rename(gone)
    with suppress(OSError):
        _mark_of(path).unlink()
    shutil.rmtree(gone, ignore_errors=True)


def _measured(place: Path) -> tuple[int, float]:
    """Return a directory tree's size in bytes, and the time of its last change."""
    size, changed = 0, 0.0
    for folder, _, names in os.walk(place):
        for path in (folder, *(os.path.join(folder, name) for name in names)):  # noqa: PTH118
            with suppress(OSError):
                status = os.lstat(path)
                size += 0 if path == folder else status.st_size
                changed = max(changed, status.st_mtime)
    return size, changed
