"""What many workers on Slurm cost: commands, polling, and the time to the first result.

    python benchmarks/slurm.py [--workers 200] [--rounds 5] [--poll-seconds 60]
                               [--jobqueue-python PYTHON]

It starts a private Slurm of its own and ends it. Beside ours stands dask-jobqueue, where
``--jobqueue-python`` (by default this Python) has it; it needs the same version of distributed:

    python -m venv /tmp/jobqueue
    /tmp/jobqueue/bin/pip install dask-jobqueue cryptography distributed==<the version here>

Commands are counted by wrappers on the PATH, whoever runs them. A worker asks for a whole node, so
that four of them run and the others wait: nothing else is measured than submitting and looking.
Slurm starts jobs in cycles, so that a job waits for a second or two by chance alone. With one
worker that wait is measured and taken off: from sbatch's answer until the batch script began.
dask-jobqueue runs as it is by default, without TLS, and once more with it: ours is never without.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "scripts"))

from slurm_testbed import SlurmTestbed

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")
BAR = 20
TIMEOUT_S = 600.0

WRAPPER = """#!/bin/sh
echo {name} >> "$BENCH_CALLS"
{real} "$@"
code=$?
[ {name} != sbatch ] || cat /proc/uptime >> "$BENCH_CALLS.answered"
exit $code
"""

#: A child begins, has a first result, waits until all is submitted, looks on, and ends.
CHILD = """
import json, os, sys, time
count, wide, idle_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
IMPORTS
def calls():
    with open(os.environ["BENCH_CALLS"]) as file:
        return file.read().split()
def script_began():
    # Seconds after boot at which the process below Slurm's own began. psutil's create_time would
    # be off by up to one second: it adds the time of the boot, which the kernel rounds.
    import psutil
    lineage = [psutil.Process(), *psutil.Process().parents()]
    script = lineage[[process.name() for process in lineage].index("slurmstepd") - 1]
    with open(f"/proc/{script.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
def main():
    began = time.perf_counter()
    START
    job_began = FIRST
    first_s = time.perf_counter() - began
    with open(os.environ["BENCH_CALLS"] + ".answered") as file:
        waited_s = job_began - float(file.readline().split()[0])
    while SUBMITTED < count:
        time.sleep(0.02)
    submitted_s = time.perf_counter() - began
    at_first = calls()
    time.sleep(idle_s)
    looked = len(calls())
    END
    print(json.dumps({"first_s": first_s, "waited_s": waited_s, "submitted_s": submitted_s,
                      "submitting": at_first, "looking": looked - len(at_first),
                      "all": calls()}))
if __name__ == "__main__":
    main()
"""
OURS = {
    "IMPORTS": "from scalable import ScalableClient, SlurmCluster",
    "START": """
    cluster = SlurmCluster(queue="batch", walltime="00:30:00", interface="lo")
    cluster.add_container(tag="a", cpus=wide, memory="1G")
    cluster.add_workers(n=count, tag="a")
    client = ScalableClient(cluster)
""".strip(),
    "FIRST": 'client.submit(script_began, tag="a").result(timeout=300)',
    "SUBMITTED": "len(list(filter(cluster.job_of, cluster.manager.inventory.names('a'))))",
    "END": "client.close(); cluster.close()",
}
JOBQUEUE = {
    "IMPORTS": "from dask_jobqueue import SLURMCluster\nfrom distributed import Client",
    "START": """
    cluster = SLURMCluster(queue="batch", walltime="00:30:00", interface="lo", cores=1, processes=1,
                           memory="1GB", job_cpu=wide, log_directory="logs")
    cluster.scale(count)
    client = Client(cluster)
""".strip(),
    "FIRST": "client.submit(script_began).result(timeout=300)",
    # A wrapper notes its call before sbatch runs: the next look sees whether it was answered.
    "SUBMITTED": "sum(bool(getattr(w, 'job_id', None)) for w in list(cluster.workers.values()))",
    "END": "client.close(); cluster.close()",
}

#: The same with what ours always has.
JOBQUEUE_TLS = JOBQUEUE | {
    "START": JOBQUEUE["START"].replace('"logs")', '"logs", security=True, protocol="tls://")')
}


class Bench:
    """A private Slurm, wrappers that count, and children that use both."""

    def __init__(self, directory: Path, testbed: SlurmTestbed) -> None:
        self.directory = directory
        self.testbed = testbed
        self._runs = 0
        (directory / "bin").mkdir()
        for name in COMMANDS:
            real = shutil.which(name)
            assert real is not None
            wrapper = directory / "bin" / name
            wrapper.write_text(WRAPPER.format(name=name, real=shlex.quote(real)))
            wrapper.chmod(0o755)

    def run(
        self, python: str, parts: Mapping[str, str], count: int, *, wide: int, idle_s: float = 0.0
    ) -> dict[str, Any]:
        """What a child of so many workers saw; its jobs are gone afterwards."""
        self._runs += 1
        work = self.directory / f"run{self._runs}"
        work.mkdir()
        source = CHILD
        for name, text in parts.items():
            source = source.replace(name, text)
        (work / "child.py").write_text(source)
        (work / "calls").touch()
        process = subprocess.Popen(
            [python, "child.py", str(count), str(wide), str(idle_s)],
            cwd=work, env=self._environment(work), text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            shown, errors = process.communicate(timeout=TIMEOUT_S + idle_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            self._cancel()
        if process.returncode:
            raise SystemExit(f"{python} failed:\n{errors[-3000:]}")
        return dict(json.loads(shown.splitlines()[-1]))

    def _environment(self, work: Path) -> dict[str, str]:
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "SBATCH_", "SQUEUE_", "DASK_"))
        }
        return own | {
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "BENCH_CALLS": str(work / "calls"),
            "XDG_STATE_HOME": str(work / "state"),
            **self.testbed.environment(),
        }

    def _cancel(self) -> None:
        """So that the next one finds the nodes as this one did."""
        if self.testbed.jobs():
            self.testbed.cancel_jobs()
        deadline = time.monotonic() + 60
        while self.testbed.jobs() and time.monotonic() < deadline:
            time.sleep(0.1)


def jobqueue_python(python: str) -> str | None:
    """The Python that dask-jobqueue runs on, or None."""
    code = "import dask_jobqueue, distributed; print(distributed.__version__)"
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode == 0:
        return python
    print(f"dask-jobqueue is not there for {python}: ours alone is shown")
    return None


def row(*cells: object) -> None:
    print("".join(f"{cell!s:<46}" if i == 0 else f"{cell!s:>16}" for i, cell in enumerate(cells)))


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return statistics.median(len(v) if isinstance(v := run[key], list) else v for run in runs)


def show(title: str, found: Mapping[str, list[dict[str, Any]]], keys: Mapping[str, str]) -> None:
    """Print medians of each contender, and how many times as much the others need as ours."""
    found = {name: runs for name, runs in found.items() if runs}
    row(title, *found)
    for what, key in keys.items():
        medians = [_median(runs, key) for runs in found.values()]
        others = (f"{value:.2f} ({value / medians[0]:.2f} x)" for value in medians[1:])
        row(f"  {what}", f"{medians[0]:.2f}", *others)


def submitting(bench: Bench, theirs: str | None, workers: int, rounds: int) -> None:
    """Commands and time for many workers at once; rounds alternate."""
    found: dict[str, list[dict[str, Any]]] = {"scalable": [], "dask-jobqueue": []}
    for _ in range(rounds):
        found["scalable"].append(bench.run(sys.executable, OURS, workers, wide=64))
        if theirs:
            found["dask-jobqueue"].append(bench.run(theirs, JOBQUEUE, workers, wide=64))
    keys = {
        f"commands until all are submitted; bar {BAR} x": "submitting",
        "commands until all are closed": "all",
        "seconds until the first result; bar 1 x": "first_s",
        "seconds until all are submitted": "submitted_s",
    }
    show(f"{workers} workers, median of {rounds} rounds", found, keys)
    for name, runs in found.items():
        for run in runs[-1:]:
            print(f"  {name}: {dict(Counter(run['all']))}")


def polling(bench: Bench, workers: int, seconds: float) -> None:
    for count in (10, workers):
        looked = bench.run(sys.executable, OURS, count, wide=64, idle_s=seconds)["looking"]
        row(f"commands a minute while {count} jobs rest", f"{looked * 60 / seconds:.1f}")


def starting(bench: Bench, theirs: str | None, rounds: int) -> None:
    """From the constructor to the first result of one worker; rounds alternate."""
    ways = {"scalable": OURS, "dask-jobqueue": JOBQUEUE, "the same, TLS": JOBQUEUE_TLS}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, parts in ways.items():
            python = sys.executable if parts is OURS else theirs
            if python:
                run = bench.run(python, parts, 1, wide=1)
                found[name].append(run | {"rest_s": run["first_s"] - run["waited_s"]})
    keys = {
        "seconds until the first result": "first_s",
        "until Slurm began the job": "waited_s",
        "all the rest": "rest_s",
    }
    show(f"one worker, median of {rounds} rounds", found, keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--poll-seconds", type=float, default=60.0)
    parser.add_argument("--jobqueue-python", default=sys.executable)
    given = parser.parse_args()
    theirs = jobqueue_python(given.jobqueue_python)
    with tempfile.TemporaryDirectory(prefix="bench") as temporary:
        directory = Path(temporary)
        testbed = SlurmTestbed(directory / "slurm", kill_wait=2)
        testbed.start()
        try:
            bench = Bench(directory, testbed)
            print(f"Slurm of {len(testbed.nodes)} nodes, as {getpass.getuser()}\n")
            for parts, python in ((OURS, sys.executable), (JOBQUEUE, theirs)):
                if python:  # once uncounted: the first import reads from the disk
                    bench.run(python, parts, 1, wide=1)
            submitting(bench, theirs, given.workers, min(3, given.rounds))
            polling(bench, given.workers, given.poll_seconds)
            starting(bench, theirs, given.rounds)
        finally:
            testbed.stop()


if __name__ == "__main__":
    main()
