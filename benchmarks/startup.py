"""The cost of starting: the first result of a cold session, and of a worker that was killed.

    python benchmarks/startup.py [--rounds 7]

Rounds alternate between the things that are compared; medians of the rounds, ratios and the bars
are printed. LocalCluster gets the same security (TLS between processes, none between threads).
Times are taken inside the script, from its first line to its first result.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MANIFEST = """version: 1
project: {name: bench}
targets: {local: {provider: local, processes: true}}
components: {a: {workers: 2}}
"""
OURS = """
import time
began = time.perf_counter()
from scalable import ScalableSession
with ScalableSession.local({"a": WORKERS}, processes=PROCESSES) as client:
    assert client.submit(abs, -1, tag="a").result() == 1
    print(time.perf_counter() - began)
"""
DASK = """
import time
if __name__ == "__main__":
    began = time.perf_counter()
    from distributed import Client, LocalCluster
    from distributed.security import Security
    security = Security.temporary() if PROCESSES else None
    with LocalCluster(n_workers=WORKERS, threads_per_worker=1, processes=PROCESSES,
                      security=security, protocol="tls://" if PROCESSES else None,
                      dashboard_address=None) as cluster:
        with Client(cluster) as client:
            assert client.submit(abs, -1).result() == 1
            print(time.perf_counter() - began)
"""
#: Seconds from the end of a killed worker to the first call that another process runs.
KILLED = """
import os, signal, time
from scalable import ScalableSession
def process(_):
    return os.getpid()
with ScalableSession.local({"a": 1}, processes=True) as client:
    for number in range(3):  # more in a row count as a crash loop
        pid = client.submit(process, -1 - number, tag="a").result()
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        assert client.submit(process, 1 + number, tag="a").result() != pid
        print(time.perf_counter() - began)
"""


def cpu_ms(command: list[str], directory: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def printed(source: str, directory: str, **names: object) -> list[float]:
    """Run a script in a new interpreter, and return the numbers that it prints."""
    script = Path(directory) / "cold.py"
    for name, value in names.items():
        source = source.replace(name, repr(value))
    script.write_text(source)
    shown = subprocess.run(
        [sys.executable, str(script)],
        cwd=directory, env={**os.environ, "SCALABLE_RUNS_DIR": f"{directory}/runs"},
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return [float(number) for number in shown.stdout.split()]


def first_results(rounds: int, directory: str) -> None:
    """Print the time to the first result beside that of LocalCluster."""
    for label, processes, workers, bar in (
        ("2 threads", False, 2, 1.4),
        ("2 processes", True, 2, 0.95),
        ("8 processes", True, 8, 0.45),
    ):
        ours, dask = [], []
        for _ in range(rounds):
            for source, found in ((OURS, ours), (DASK, dask)):
                found.extend(printed(source, directory, PROCESSES=processes, WORKERS=workers))
        mine, theirs = statistics.median(ours), statistics.median(dask)
        pairs = statistics.median(a / b for a, b in zip(ours, dask, strict=True))
        print(
            f"first result, {label}: {mine:.2f} s, LocalCluster {theirs:.2f} s, "
            f"ratio {mine / theirs:.2f} (median of the rounds' ratios {pairs:.2f}); bar {bar}"
        )


def killed_worker(rounds: int, directory: str) -> None:
    times: list[float] = []
    while len(times) < rounds:
        times += printed(KILLED, directory)
    print(f"killed worker back: median {statistics.median(times):.2f} s; bar 0.50 s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "scalable.yaml").write_text(MANIFEST)
        first_results(rounds, directory)
        killed_worker(rounds, directory)


if __name__ == "__main__":
    main()
