"""Records of made-up runs, written by the real recorder.

The recorder is told of calls as the ledger tells it; only the calls, their times and the clock are
made up. Its turns are measured: the CPU time for which each would hold the scheduler's event loop,
without garbage collection.
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from scalable.files import write_json
from scalable.protocol.measured import BUNDLE, BUNDLE_ANNOTATION, KIND, SHARES, USAGE
from scalable.quantiles import quantile
from scalable.runs import RunDirectory
from scalable.scheduler.ledger import Call, EndedCall
from scalable.scheduler.recorder import FLUSH_INTERVAL_S, Recorder

START = 1_767_225_600.0
TAGS = ("model", "post")
#: Kinds of records: calls of ``submit``, calls of executors, and these with ``record_calls``.
KINDS = ("single calls", "bundles", "bundles with a row for each call")
#: Tasks that are submitted together, calls of the largest bundle, and mean seconds of a call.
TOGETHER, BUNDLED, CALL_S = 1000, 4096, (1.0, 0.001, 0.001)
#: CPU seconds of the scheduler for a call by ``submit`` and by executor, which tell how many rows
#: come together until they are written.
CALL_CPU_S = (1e-3, 3e-5, 3e-5)


@dataclass
class Written:
    """Measures of the writing of one record: CPU seconds, and bytes of all files."""

    run: Path
    rows: int
    cpu_s: float
    longest_turn_s: float
    nbytes: int


class _Clock:
    """Made-up time that the recorder sees."""

    now = START

    def __call__(self) -> float:
        return self.now


class _Task(SimpleNamespace):
    """What the recorder sees of a task of Dask."""

    @property
    def exception_blame(self) -> _Task:
        """The task that is to blame for a failure."""
        return self


def write_record(
    runs_dir: Path,
    calls: int,
    kind: str,
    *,
    workers: int = 200,
    project: str = "large",
    seed: int = 1,
) -> Written:
    """Write the record of a run up to its last call; it is still to be closed."""
    run = RunDirectory.create(
        project, "here", manifest_yaml="", manifest_lock="0" * 64, plan={}, runs_dir=runs_dir,
        provider="local",
    )  # fmt: skip
    clock = _Clock()
    states = {
        f"tls://{n}": SimpleNamespace(
            address=f"tls://{n}", name=f"{TAGS[n % 2]}-{n}", resources={TAGS[n % 2]: 1},
            extra={}, host="here", executing={}, metrics={"cpu": 90.0, "memory": 10**8},
            memory_limit=2 * 10**9,
        )
        for n in range(workers)
    }  # fmt: skip
    cpu_s, longest = 0.0, 0.0
    gc.collect()
    gc.disable()
    with mock.patch("time.time", clock):
        recorder = Recorder(SimpleNamespace(workers=states), run, TAGS)
        for turn in _turns(recorder, calls, kind, workers, clock, random.Random(seed)):
            began = time.thread_time()
            turn()
            took = time.thread_time() - began
            cpu_s, longest = cpu_s + took, max(longest, took)
        for address in states:
            recorder.worker_removed(address)
        recorder.stop()
    gc.enable()
    run.release()
    told = json.loads((run.path / "run.json").read_text())
    moments = {
        key: time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(at))
        for key, at in (("started_at", START - 1), ("ended_at", clock.now + 1))
    }
    write_json(run.path / "run.json", told | moments)
    with (run.path / "tasks.jsonl").open("rb") as file:
        rows = sum(1 for _ in file)
    nbytes = sum(path.stat().st_size for path in run.path.iterdir())
    return Written(run.path, rows, cpu_s, longest, nbytes)


def _turns(
    recorder: Recorder, calls: int, kind: str, workers: int, clock: _Clock, chance: random.Random
) -> Iterator[Callable[[], Any]]:
    """Yield what the recorder does in each turn of the scheduler's loop."""
    free = [START] * workers
    each = 1 if kind == KINDS[0] else BUNDLED
    unwritten = 0.0
    for first in range(0, calls, each * TOGETHER):
        numbers = range(first, min(calls, first + each * TOGETHER), each)
        made = [_call(number // each, kind, chance) for number in numbers]
        clock.now = min(free)
        yield partial(recorder.submitted, made)
        for number, call in zip(numbers, made, strict=True):
            count, worker = min(each, calls - number), number // each % workers
            end = _end(call, count, worker, free, CALL_S[KINDS.index(kind)], chance)
            yield partial(recorder.ready, call)
            yield partial(recorder.ended, end)
            unwritten += count * CALL_CPU_S[KINDS.index(kind)]
            if unwritten >= FLUSH_INTERVAL_S:
                unwritten = 0.0
                yield recorder._tick
    clock.now = max(free)


def _call(number: int, kind: str, chance: random.Random) -> Call:
    tag = TAGS[number % 2]
    name = f"{tag}-{chance.randrange(3)}"
    bundle = {"calls": BUNDLED, "rows": kind == KINDS[2]}
    task: Any = _Task(
        key=f"{name}-{chance.getrandbits(128):032x}", prefix=SimpleNamespace(name=name),
        annotations={} if kind == KINDS[0] else {BUNDLE_ANNOTATION: bundle},
        resource_restrictions={tag: 1}, dependencies=(), state="released", has_lost_dependencies=(),
    )  # fmt: skip
    return Call(task)


def _end(
    call: Call, count: int, worker: int, free: list[float], mean_s: float, chance: random.Random
) -> EndedCall:
    """Return the end of a call, or of a bundle of ``count`` calls, after the worker's last one."""
    begin = end = free[worker]
    rows = []
    for _ in range(count):
        length = mean_s * chance.lognormvariate(-0.5, 1.0)
        rows.append(("succeeded", (end, length, 0.9 * length, chance.randrange(10**8, 10**9))))
        end += length
    free[worker] = end + 0.01
    parts: list[Mapping[str, Any]] = [
        {"action": "compute", "start": begin, "stop": end},
        {"action": "", KIND: USAGE, "cpu_s": 0.9 * (end - begin), "peak_memory": rows[0][1][3]},
    ]
    if call.bundle is not None:
        lengths = sorted(length for _, (_, length, _, _) in rows)
        told = {"calls": count, "failed": 0, "failures": (), "total_s": sum(lengths)}
        told |= {"quantiles_s": [quantile(lengths, share) for share in SHARES]}
        parts.append(
            told | {"action": "", KIND: BUNDLE, "rows": rows if call.bundle["rows"] else ()}
        )
    failed = call.bundle is None and chance.random() < 0.01
    details: dict[str, Any] = {"startstops": parts, "nbytes": 100}
    if failed:
        details |= {"exception_text": "ValueError('bad value')", "nbytes": None}
        details |= {"traceback_text": '  File "w.py", line 3, in f\n    g()\nValueError'}
    return EndedCall(call, not failed, details, f"{TAGS[worker % 2]}-{worker}")
