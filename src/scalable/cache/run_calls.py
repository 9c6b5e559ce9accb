"""Log of a run's tasks, and their comparison with a later run's tasks."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path

from scalable.cache.entries import Unreadable
from scalable.cache.own_files import READING, check_own, make_private

logger = logging.getLogger("scalable.cache")

_WRITING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Ended(StrEnum):
    """Outcome of a finished task."""

    #: The task ran, and its result is stored.
    KEPT = "kept"
    #: The result was taken from the resumed run.
    ANSWERED = "answered"
    #: The task ran, and its result cannot be stored.
    UNKEPT = "unkept"
    #: The task ran and failed.
    FAILED = "failed"


#: Outcomes of tasks that ran.
RAN = (Ended.KEPT, Ended.UNKEPT, Ended.FAILED)


class RerunCause(StrEnum):
    """Reason why a task ran in a run that resumes another."""

    FAILED = "failed before"
    GONE = "result not kept"
    CODE = "changed code"
    ENVIRONMENT = "changed environment"
    NEW = "new"
    UNKEYED = "without a key"


@dataclass(frozen=True)
class RunCall:
    """Finished task of a run."""

    #: Name of the task's function, with the module.
    function: str
    end: Ended
    #: Digest of the task's cache key, or empty.
    key: str = ""
    #: Digests of the key parts that all tasks of the function share. ``code`` is empty if the code
    #: has changed since the result was stored.
    code: str = ""
    environment: str = ""
    #: Digest of the key without the code, or empty; see ``_inputs`` in resumable.py.
    inputs: str = ""
    #: Running time of the task in seconds.
    cost_s: float = 0.0
    #: Why the task failed, or why its result is not stored.
    reason: str = ""


_NAMES = frozenset(field.name for field in fields(RunCall))


class CallLog:
    """Log of a run's tasks in a directory. Each process appends to its own file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._descriptor: int | None = None
        self._process = 0
        self._lock = threading.Lock()

    def add(self, call: RunCall) -> None:
        """Add a task. Failures are not raised, but cause one warning."""
        row = {name: value for name, value in asdict(call).items() if value not in ("", 0.0)}
        line = json.dumps(row, separators=(",", ":")) + "\n"
        try:
            os.write(self._opened(), line.encode("utf-8", "replace"))
        except OSError as error:
            logger.log(
                logging.WARNING if self._descriptor != -1 else logging.DEBUG,
                "could not record the tasks of this run in %s: %s",
                self.directory,
                error,
            )
            self._descriptor, self._process = -1, os.getpid()

    def _opened(self) -> int:
        with self._lock:
            if self._descriptor is None or self._process != os.getpid():  # forked since
                make_private(self.directory)
                name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
                self._descriptor = os.open(self.directory / name, _WRITING, 0o600)
                self._process = os.getpid()
            return self._descriptor

    def calls(self) -> Iterator[RunCall]:
        """Iterate over the tasks, skipping other users' files and partial lines."""
        for path in sorted(self.directory.glob("*.jsonl")):
            with suppress(OSError, Unreadable):
                yield from _calls_in(path)


def _calls_in(path: Path) -> Iterator[RunCall]:
    with open(os.open(path, READING), "rb") as file:  # noqa: PTH123 - a descriptor
        check_own(os.fstat(file.fileno()))
        for line in file:
            with suppress(ValueError, TypeError, KeyError, AttributeError):
                row = json.loads(line)
                row = {name: value for name, value in row.items() if name in _NAMES}
                yield RunCall(**(row | {"end": Ended(row["end"])}))


class EarlierCalls:
    """Tasks of a resumed run, compared with the tasks of the run that resumes it."""

    def __init__(self, calls: Iterable[RunCall]) -> None:
        self._left: Counter[str] = Counter()
        self._failed: set[str] = set()
        self._codes: dict[str, set[str]] = {}
        self._environments: set[tuple[str, str]] = set()
        self._keys: dict[str, set[str]] = {}
        for call in calls:
            self._codes.setdefault(call.function, set()).add(call.code)
            self._environments.add((call.code, call.environment))
            if call.end is Ended.FAILED:
                self._failed.add(call.key)
            elif call.key:
                self._left[call.key] += 1
                self._keys.setdefault(call.inputs, set()).add(call.key)

    def key_despite_code(self, inputs: str) -> str | None:
        """Return the only key of the results with these inputs, or None for no or several keys."""
        keys = self._keys.get(inputs, ()) if inputs else ()
        return next(iter(keys)) if len(keys) == 1 else None

    def answered(self, key: str) -> None:
        self._left[key] -= 1

    def cause(self, call: RunCall) -> RerunCause:
        """Return why a task ran. Each missing result explains one task only."""
        if not call.key:
            return RerunCause.UNKEYED
        if self._left[call.key] > 0:
            self._left[call.key] -= 1
            return RerunCause.GONE
        if call.key in self._failed:
            return RerunCause.FAILED
        if call.function not in self._codes:
            return RerunCause.NEW
        codes = self._codes[call.function]
        despite = "" in codes and bool(call.inputs) and call.inputs in self._keys
        if call.code not in codes or despite:
            return RerunCause.CODE
        known = (call.code, call.environment) in self._environments
        return RerunCause.NEW if known else RerunCause.ENVIRONMENT


def causes(earlier: Iterable[RunCall], later: Iterable[RunCall]) -> Counter[RerunCause]:
    """Count the reasons why tasks ran in a run that resumed another."""
    compared, calls = EarlierCalls(earlier), list(later)
    for call in calls:
        if call.end is Ended.ANSWERED:
            compared.answered(call.key)
    return Counter(compared.cause(call) for call in calls if call.end in RAN)
