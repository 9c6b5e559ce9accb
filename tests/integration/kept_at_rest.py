"""What a detached cluster keeps at rest, and what of it may have grown between two looks.

Two looks at equal work show a leak as growth: of threads, open files, memory, entries of containers,
objects, files, and of bytes of records for each call.
"""

import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import process_census
import psutil

from detached import processes_of
from scalable.protocol.importing import TABLES_KEPT
from scalable.protocol.measured import PROFILE
from scalable.providers.local.launcher import ENDS_KEPT
from scalable.records import find
from scalable.scaling.task_model import KEPT_SAMPLES
from scalable.scheduler.task_log import KEPT_ENDED

#: Growth of a process that is no leak: of threads, of files, and of memory as a share and in bytes.
#: A scheduler keeps the times of its last 20,000 calls, which a night may not fill.
MORE_THREADS, MORE_FILES = 4, 4
MORE_MEMORY, MORE_MEMORY_BYTES = 0.05, 16e6
#: Growth of what a process keeps that is no leak: as a share, and in entries or objects.
MORE_ENTRIES, MORE_ENTRIES_COUNT = 0.25, 30
#: Most bytes of the record of a run: at once, and for each call.
RECORD_BYTES, RECORD_BYTES_OF_CALL = 100_000, 2_000
#: Largest numbers of workers and of kinds of calls in a night.
WORKERS, KINDS = 10_000, 100
#: Most root spans that a scheduler keeps, twice Dask's max-history of computations (test_night.py),
#: and most tasks in the latest messages to its workers, which Dask keeps (low-level-log-length).
SPANS, SENT = 10, 200
#: What grows until it is full, or with the number of workers up to a limit of its own -> entries
#: that it may have.
BOUNDED = {
    # asyncio keeps up to 100 timers that were cancelled.
    "asyncio.events.TimerHandle": 150,
    "asyncio.unix_events._UnixSelectorEventLoop._scheduled": 150,
    "dask._task_spec.Task": SENT,
    "dask._task_spec.Task.args": 6 * SENT,
    "distributed.protocol.serialize.ToPickle": SENT,
    "distributed.scheduler.TaskGroup.states": 8 * 5 * SPANS,
    "distributed.spans.Span._cumulative_worker_metrics": 4 * 5 * SPANS,
    "distributed.spans.Span._metadata": 50 * SPANS,
    "distributed.spans.Span._total_nthreads_history": 100 * SPANS,
    "scalable.dask_compat.tasks.CarriedNode": SENT,
    "scalable.protocol.code.CodeTable": TABLES_KEPT + 1,
    "scalable.protocol.handlers.LossReason": WORKERS,
    "scalable.protocol.importing.CodeVersions.tables": TABLES_KEPT + 1,
    "scalable.protocol.code.CodeTable.modules": 10 * (TABLES_KEPT + 1),
    "scalable.protocol.code.CodeTable.search_path": 20 * (TABLES_KEPT + 1),
    "scalable.protocol.code.ModuleCode": 10 * (TABLES_KEPT + 1),
    "scalable.providers.local.launcher.DetachedLauncher._ends": ENDS_KEPT,
    "scalable.providers.local.launcher.End": ENDS_KEPT,
    "scalable.scaling.task_model._Record.ended": KINDS * KEPT_SAMPLES,
    "scalable.scaling.task_model._Record.memory": KINDS * KEPT_SAMPLES,
    "scalable.scheduler.worker_records.WorkerRecord": WORKERS,
    "scalable.scheduler.worker_records.WorkerRecord.begun": WORKERS,
    "scalable.scheduler.worker_records.WorkerRecord.keys": WORKERS,
    "scalable.scheduler.worker_records.WorkerRecord.reason": 4 * WORKERS,
    "scalable.scheduler.worker_records.WorkerRecords._at": 2 * WORKERS,
    "scalable.scheduler.worker_records.WorkerRecords._others": WORKERS,
    "scalable.scheduler.overviews.NameRow.counted": 4 * KINDS * 6,
    "scalable.scheduler.overviews.RecentEvents._samples": 3 * (KEPT_SAMPLES + 1),
    "scalable.scheduler.task_log.Forgotten": KEPT_ENDED,
    "scalable.scheduler.task_log.LostBundle": KEPT_ENDED,
    "scalable.scheduler.task_log.TaskLog._ended": KEPT_ENDED * (6 + len(PROFILE)),
}


@dataclass(frozen=True)
class Process:
    """Threads, open files, memory in bytes (without garbage), and contents of one process."""

    threads: int
    files: int
    memory: int
    sizes: dict
    instances: dict

    @classmethod
    def of(cls, pid, censuses):
        """Look at a process; ask it for a census if a directory for these is given."""
        process = psutil.Process(pid)
        seen = process.num_threads(), process.num_fds()
        found = {"memory": process.memory_info().rss, "sizes": {}, "instances": {}}
        if censuses is not None:
            found = process_census.asked(pid, censuses)
        return cls(*seen, **found)

    def grown(self, first):
        """Return what has grown since the first look, as text."""
        faults = []
        if self.threads > first.threads + MORE_THREADS or self.files > first.files + MORE_FILES:
            faults.append("threads or files")
        if self.memory > (1 + MORE_MEMORY) * first.memory + MORE_MEMORY_BYTES:
            faults.append("memory")
        for before, now in ((first.sizes, self.sizes), (first.instances, self.instances)):
            for key, count in sorted(now.items()):
                most = (1 + MORE_ENTRIES) * before.get(key, 0) + MORE_ENTRIES_COUNT
                if count > BOUNDED.get(key, most):
                    faults.append(f"{key}: {before.get(key, 0)} -> {count}")
        return faults

    def __str__(self):
        return f"{self.threads} threads, {self.files} files, {self.memory / 1e6:.1f} MB"


@dataclass(frozen=True)
class Kept:
    """Processes, files and logs of a cluster at rest.

    Attributes
    ----------
    at, calls
        Monotonic time in seconds; number of calls until then.
    programs
        Program -> number of its processes, of all clusters in the place.
    processes
        Name -> process, of those that live as long as the cluster.
    state, run
        File of the cluster's private directory, or of its record -> bytes.
    temporary
        Entries of the temporary directory.
    logged
        Bytes of the logs of scheduler and manager.
    """

    at: float
    calls: int
    programs: Counter
    processes: dict
    state: dict
    run: dict
    temporary: list
    logged: int

    @classmethod
    def by(cls, name, place, calls):
        """Look at a cluster by its name."""
        directory = find(name)
        scheduler, (manager,) = directory.scheduler(), directory.managers().values()
        (forking,) = psutil.Process(manager["pid"]).children()
        pids = {"scheduler": scheduler["pid"], "manager": manager["pid"]}
        processes = {of: Process.of(pid, place / "census") for of, pid in pids.items()}
        processes["fork server"] = Process.of(forking.pid, None)
        return cls(
            at=time.monotonic(),
            calls=calls,
            programs=Counter(map(_program, processes_of(place))),
            processes=processes,
            state=_sizes(directory.path),
            run=_sizes(Path(scheduler["run"])),
            temporary=ours_in_temporary(),
            logged=sum(path.stat().st_size for path in directory.logs_dir.glob("*.log")),
        )

    def logged_per_minute(self, first):
        """Return the bytes that scheduler and manager have logged in a minute since a look."""
        return 60 * (self.logged - first.logged) / (self.at - first.at)

    def grown(self, first, workers):
        """Return what has grown since the first look; ``workers`` have been started in all."""
        faults = [
            f"{name}: {fault}"
            for name, process in self.processes.items()
            for fault in process.grown(first.processes[name])
        ]
        faults += [] if self.programs == first.programs else ["programs"]
        if len(self.temporary) > len(first.temporary):
            faults.append(f"temporary directory: {self.temporary}")
        faults += [] if self.state.keys() == first.state.keys() else ["private directory"]
        for file, size in self.state.items():
            if not file.endswith(".log") and size > 1.5 * first.state.get(file, 0) + 1000:
                faults.append(f"{file}: {first.state.get(file, 0)} -> {size} bytes")
        for file, size in self.run.items():
            most = RECORD_BYTES + RECORD_BYTES_OF_CALL * (self.calls - first.calls)
            if not file.startswith("logs/") and size > first.run.get(file, 0) + most:
                faults.append(f"{file}: {first.run.get(file, 0)} -> {size} bytes")
        logs = [file for file in self.run if file.startswith("logs/")]
        return faults + ([] if len(logs) <= workers else ["logs of workers"])


def ours_in_temporary():
    """Return the entries of the temporary directory that our processes have named.

    A process that is killed in the moment in which Dask makes its TLS context leaves a directory of
    Dask's (``tmp...``), which is not counted.
    """
    entries = os.listdir(os.environ["TMPDIR"])
    return [name for name in entries if name.startswith(("scalable", "dask"))]


def _program(process):
    words = process.info["cmdline"]
    return words[words.index("-m") + 1] if "-m" in words else words[0]


def _sizes(directory):
    paths = (path for path in directory.rglob("*") if path.is_file() or path.is_socket())
    return {str(path.relative_to(directory)): path.stat().st_size for path in paths}
