"""What starting costs: CPU time of the light commands, and the first result of a cold session.

    python benchmarks/startup.py [--rounds 7]

Rounds alternate between the things that are compared; medians and ratios are printed.
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
with ScalableSession.local({"a": 2}, processes=PROCESSES) as client:
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
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=PROCESSES, security=security,
                      protocol="tls://" if PROCESSES else None, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            assert client.submit(abs, -1).result() == 1
            print(time.perf_counter() - began)
"""


def cpu_ms(command: list[str], directory: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def first_result_s(source: str, directory: str, *, processes: bool) -> float:
    script = Path(directory) / "cold.py"
    script.write_text(source.replace("PROCESSES", str(processes)))
    shown = subprocess.run(
        [sys.executable, str(script)],
        cwd=directory,
        env={**os.environ, "SCALABLE_RUNS_DIR": f"{directory}/runs"},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return float(shown.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    scalable = [sys.executable, "-m", "scalable"]
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "scalable.yaml").write_text(MANIFEST)
        for name, bar in (("--help", 150), ("validate", 300)):
            spent = [cpu_ms([*scalable, name], directory) for _ in range(rounds)]
            print(f"scalable {name}: median {statistics.median(spent):.0f} CPU-ms; bar {bar}")
        for processes in (True, False):
            ours, dask = [], []
            for _ in range(rounds):
                ours.append(first_result_s(OURS, directory, processes=processes))
                dask.append(first_result_s(DASK, directory, processes=processes))
            mine, theirs = statistics.median(ours), statistics.median(dask)
            kind = "processes" if processes else "threads"
            print(
                f"first result, {kind}: {mine:.2f} s, LocalCluster {theirs:.2f} s, "
                f"ratio {mine / theirs:.2f}, difference {mine - theirs:+.2f} s"
            )


if __name__ == "__main__":
    main()
