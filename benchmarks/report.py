"""Records of large runs: what writing and reading them takes, and the HTML report.

    python benchmarks/report.py [--calls 1000000] [--workers 200] [--runs 20]
                                [--keep DIRECTORY]

The real recorder writes the records of made-up calls: by ``submit``, by executors, and by executors
that record each call. Each reader is a process of its own, whose CPU time and peak memory count.
The next plan is made after one such run, and after several with a tenth of the calls each. The
default takes about five minutes on an idle machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from scalable.files import write_json
from scalable.protocol.measured import BUNDLE, BUNDLE_ANNOTATION, KIND, SHARES, USAGE
from scalable.quantiles import quantile
from scalable.runs.directory import RunDirectory
from scalable.scheduler.recorder import FLUSH_INTERVAL_S, Recorder
from scalable.scheduler.task_log import EndedTask, LoggedTask

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
        plugins: dict[str, Any] = {}
        add = {"add_plugin": lambda plugin: plugins.update({plugin.name: plugin})}
        scheduler = SimpleNamespace(workers=states, tasks={}, plugins=plugins, **add)
        recorder = Recorder(scheduler, run, TAGS)
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
            call.ready_at = clock.now
            yield partial(recorder.ready, call)
            yield partial(recorder.ended, end)
            unwritten += count * CALL_CPU_S[KINDS.index(kind)]
            if unwritten >= FLUSH_INTERVAL_S:
                unwritten = 0.0
                yield recorder._tick
    clock.now = max(free)


def _call(number: int, kind: str, chance: random.Random) -> LoggedTask:
    tag = TAGS[number % 2]
    name = f"{tag}-{chance.randrange(3)}"
    bundle = {"calls": BUNDLED, "rows": kind == KINDS[2]}
    task: Any = _Task(
        key=f"{name}-{chance.getrandbits(128):032x}", prefix=SimpleNamespace(name=name),
        annotations={} if kind == KINDS[0] else {BUNDLE_ANNOTATION: bundle},
        resource_restrictions={tag: 1}, dependencies=(), state="released", has_lost_dependencies=(),
    )  # fmt: skip
    return LoggedTask(task)


def _end(
    call: LoggedTask,
    count: int,
    worker: int,
    free: list[float],
    mean_s: float,
    chance: random.Random,
) -> EndedTask:
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
    return EndedTask(call, not failed, details, f"{TAGS[worker % 2]}-{worker}")


#: Bars of the summary of a record: CPU seconds per million rows, and MB of peak memory.
SUMMARY_S, SUMMARY_MB = 10.0, 500.0
#: Seconds in which the measurements of earlier runs are read, and a plan knows them.
HISTORY_S = 1.0
#: Milliseconds for which a turn of the recorder may hold the scheduler's event loop.
HELD_MS = 50.0
#: Seconds and MB of the report of 100,000 calls.
MADE_S, SIZE_MB = 10.0, 5.0
MANIFEST = """\
version: 1
project: {{name: large}}
targets: {{here: {{provider: local}}}}
components: {{model: {{cpus: 1}}, post: {{cpus: 1}}}}
tasks: {{{tasks}}}
"""
#: Runs a command and tells its seconds, CPU seconds and kilobytes. A process begins with the peak
#: memory of the one that started it, which therefore is a small one.
USED = """
import resource, subprocess, sys, time
began = time.perf_counter()
subprocess.run(sys.argv[1:], check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print()
print(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
CLI = "import sys; from scalable.cli.main import main; sys.exit(main())"
CLOSE = (
    "import sys; from scalable.runs.directory import RunDirectory as R; "
    "R.open(sys.argv[1]).close('completed')"
)
HISTORY = """
import sys, time
from pathlib import Path
from scalable.forecasting import gather
from scalable.session.request import Request
spec = Request.read(Path(sys.argv[1]), None).spec
began = time.perf_counter()
known = gather(spec, runs_dir=Path(sys.argv[2]))
print(time.perf_counter() - began)
print(sum(known.calls.values()))
"""


@dataclass(frozen=True)
class Took:
    """Measures of one process: seconds, CPU seconds, and peak memory in MB; and its output."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    output: str


def took(*arguments: str, **environ: str) -> Took:
    shown = subprocess.run(
        [sys.executable, "-c", USED, sys.executable, *arguments],
        check=True, capture_output=True, text=True, env={**os.environ, **environ},
    )  # fmt: skip
    *output, used = shown.stdout.splitlines()
    wall, cpu, peak = map(float, used.split())
    return Took(wall, cpu, peak / 1e3, "\n".join(output))


class Bench:
    """Measurements as rows of Markdown tables, and bars."""

    def __init__(self, place: Path, workers: int) -> None:
        self.place, self.workers = place, workers
        self.bars: list[str] = []

    def bar(self, value: float, most: float, words: str) -> None:
        verdict = "met" if value <= most else "MISSED"
        self.bars.append(f"- {verdict}: {words} (bar {most:g})")

    def written(self, kind: str, calls: int) -> tuple[Written, str]:
        run = write_record(self.place / str(KINDS.index(kind)), calls, kind, workers=self.workers)
        held = 1e3 * run.longest_turn_s
        self.bar(held, HELD_MS, f"the recorder holds the loop for {held:.0f} ms, {kind}")
        cells = (
            f"{calls:,} | {run.rows:,} | {run.nbytes / 1e6:,.0f} | {1e6 * run.cpu_s / calls:.2f}"
        )
        return run, f"| {kind} | {cells} | {held:.1f} |"

    def read(self, kind: str, run: Written, calls: int) -> Iterator[str]:
        runs = str(run.run.parent)
        programs = {"end of the run: summary and measurements": ["-c", CLOSE, str(run.run)]}
        page = self.place / "report.html"
        for options in (["report"], ["report", "--failed"], ["runs"]):
            programs[f"`scalable {' '.join(options)}`"] = ["-c", CLI, *options, "--runs-dir", runs]
        to_page = ["report", "--format", "html", "--runs-dir", runs, "--output", str(page)]
        programs["`scalable report --format html`"] = ["-c", CLI, *to_page]
        for name, arguments in programs.items():
            found = took(*arguments)
            yield _row(name, kind, found)
            if name == "`scalable report`":
                each_s = found.cpu_s * 1e6 / max(run.rows, 1e6)
                words = f"{calls:,} {kind}, {run.rows:,} rows: the summary takes"
                self.bar(each_s, SUMMARY_S, f"{words} {each_s:.1f} CPU s per million rows")
                self.bar(found.peak_mb, SUMMARY_MB, f"{words} {found.peak_mb:.0f} MB")
            elif "html" in name:
                size = page.stat().st_size / 1e6
                yield f"| its size: {size:.2f} MB | {kind} | | | |"
                self.bar(size, SIZE_MB, f"the report of {calls:,} calls has {size:.2f} MB, {kind}")
                most = MADE_S * max(1.0, calls / 1e5)
                made = f"the report of {calls:,} calls takes {found.cpu_s:.1f} CPU s, {kind}"
                self.bar(found.cpu_s, most, made)

    def planned(self, kind: str, runs: Path, words: str) -> Iterator[str]:
        manifest = runs / "scalable.yaml"
        names = [f"{tag}-{number}" for tag in TAGS for number in range(3)]
        tasks = ", ".join(f"{name}: {{component: {name.split('-')[0]}}}" for name in names)
        manifest.write_text(MANIFEST.format(tasks=tasks))
        found = took("-c", HISTORY, str(manifest), str(runs))
        seconds, calls = found.output.split()
        told = (
            f"history {words}, {float(seconds):.2f} s without imports, {int(calls):,} calls known"
        )
        yield _row(told, kind, found)
        self.bar(float(seconds), HISTORY_S, f"history {words} in {float(seconds):.2f} s, {kind}")
        plan = ["-c", CLI, "plan", str(manifest)]
        yield _row(f"`scalable plan` {words}", kind, took(*plan, SCALABLE_RUNS_DIR=str(runs)))

    def several(self, kind: str, calls: int, count: int) -> Iterator[str]:
        """Yield rows about the next plan after several runs that have ended in order."""
        runs = self.place / f"several-{KINDS.index(kind)}"
        run = write_record(runs, calls, kind, workers=self.workers).run
        took("-c", CLOSE, str(run))
        for number in range(1, count):
            other = runs / f"{run.name[:-4]}{number:04x}"
            shutil.copytree(run, other, copy_function=os.link)
        yield from self.planned(kind, runs, f"after {count} runs of {calls:,}")


def _row(name: str, kind: str, found: Took) -> str:
    return f"| {name} | {kind} | {found.wall_s:.1f} | {found.cpu_s:.1f} | {found.peak_mb:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--runs", type=int, default=20, help="number of smaller runs, 0 for none")
    parser.add_argument("--kinds", type=int, nargs="+", default=range(len(KINDS)))
    parser.add_argument("--keep", type=Path, help="directory in which the runs stay")
    asked = parser.parse_args()
    place = asked.keep or Path(tempfile.mkdtemp())
    try:
        bench = Bench(place, asked.workers)
        measure(bench, [KINDS[kind] for kind in asked.kinds], asked.calls, asked.runs)
        print("", *bench.bars, sep="\n")
    finally:
        if asked.keep is None:
            shutil.rmtree(place)


def measure(bench: Bench, kinds: Sequence[str], calls: int, runs: int) -> None:
    print("| record | calls | rows | MB | recorder, CPU µs a call | longest turn ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    written: Mapping[str, Written] = {}
    for kind in kinds:
        run, row = bench.written(kind, calls)
        written = {**written, kind: run}
        print(row, flush=True)
    print("\n| reader | record | s | CPU s | peak MB |\n| --- | --- | --- | --- | --- |")
    for kind, run in written.items():
        planned = bench.planned(kind, run.run.parent, f"after a run of {calls:,}")
        for row in chain(bench.read(kind, run, calls), planned):
            print(row, flush=True)
    if runs:
        for row in bench.several(kinds[0], max(1, calls // 10), runs):
            print(row, flush=True)


if __name__ == "__main__":
    main()
