"""What clusters on record cost: the time that ``scalable list`` takes.

    python benchmarks/clusters.py [--clusters 50] [--rounds 7]

The clusters are on record only: each has a scheduler that seems to run, and a status of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

from scalable.liveness import identify_process
from scalable.model import ClusterRecord
from scalable.records import ClusterDirectory

BAR_S = 1.0
TAGS = ("climate", "water", "impacts")


def put_on_record(number: int) -> None:
    record = ClusterRecord(
        id=str(uuid.uuid4()),
        name=f"cluster-{number}",
        provider="local",
        target="local",
        project="bench",
        owner="me",
        created_at="2026-01-01T00:00:00+00:00",
        stage="made",
        tags=TAGS,
    )
    directory = ClusterDirectory.create(record)
    directory.write_scheduler({**identify_process(), "address": "tls://127.0.0.1:4711"})
    pool = {"wanted": 2, "running": 2, "launching": 0, "failed": 0}
    directory.write_status(
        {
            "written_at": time.time() + 600,
            "state": "running",
            "pools": dict.fromkeys(TAGS, pool),
            "managers": [{"id": "local", "target": "local", "state": "attached"}],
        }
    )


def list_s(expected: int) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "scalable", "list", "--format", "json"],
        check=True,
        capture_output=True,
        timeout=120,
    )
    spent = time.perf_counter() - began
    rows = json.loads(done.stdout)["clusters"]
    assert [row["state"] for row in rows] == ["running"] * expected
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XDG_STATE_HOME"] = directory
        for count in (0, asked.clusters):
            for number in range(count):
                put_on_record(number)
            spent = [list_s(count) for _ in range(asked.rounds)]
            median, most = statistics.median(spent), max(spent)
            bar = f"; bar {BAR_S:g} s" if count else ""
            print(f"scalable list, {count} clusters: median {median:.2f} s, most {most:.2f} s{bar}")


if __name__ == "__main__":
    main()
