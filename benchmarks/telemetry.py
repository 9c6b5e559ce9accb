"""What recording costs: CPU time of the scheduler's process with and without a record, in pairs.

    python benchmarks/telemetry.py [--pairs 5] [--tasks 10000]

Each run is a process of its own that holds client and scheduler, with two worker processes. CPU
time counts from the first submit until the session is closed, so the summary that is written at the
end is paid for too. The order within a pair alternates.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

RUN = """
import sys, time
from scalable import ScalableSession

def nothing(i):
    return i

tasks = int(sys.argv[1])
session = ScalableSession.local({"a": 2}, processes=True)
client = session.start()
client.gather(client.map(nothing, range(200), tag="a"))
began = time.process_time()
futures = [client.submit(nothing, i, tag="a") for i in range(tasks)]
client.gather(futures)
del futures
session.close()
print(time.process_time() - began)
"""


def cpu_seconds(tasks: int, *, recorded: bool) -> float:
    with tempfile.TemporaryDirectory() as directory:
        shown = subprocess.run(
            [sys.executable, "-c", RUN, str(tasks)],
            env={
                **os.environ,
                "SCALABLE_TELEMETRY": "1" if recorded else "0",
                "SCALABLE_RUNS_DIR": directory,
            },
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        )
    return float(shown.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=10_000)
    options = parser.parse_args()
    ratios = []
    for pair in range(options.pairs):
        order = (True, False) if pair % 2 else (False, True)
        seconds = {recorded: cpu_seconds(options.tasks, recorded=recorded) for recorded in order}
        ratios.append(seconds[True] / seconds[False])
        print(
            f"pair {pair + 1}: without {seconds[False]:.2f} CPU-s, with {seconds[True]:.2f} CPU-s, "
            f"ratio {ratios[-1]:.3f}",
            flush=True,
        )
    low, high = min(ratios), max(ratios)
    print(f"median ratio {statistics.median(ratios):.3f} ({low:.3f} .. {high:.3f}); bar 1.05")


if __name__ == "__main__":
    main()
