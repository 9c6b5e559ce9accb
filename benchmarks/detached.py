"""What it costs to start a cluster apart from oneself: time to the first result.

    python benchmarks/detached.py [--rounds 5]

Cold processes each time, alternating: an embedded session, the same session detached, and
`scalable up` followed by a script that connects.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BAR = 1.5
MANIFEST = """\
version: 1
project: {name: bench}
targets:
  local: {provider: local, processes: true}
components:
  a: {cpus: 1, workers: 1}
"""
SESSION = """
from scalable import ScalableSession
session = ScalableSession.from_yaml()
client = session.start(%s)
assert client.submit(abs, -1, tag="a").result() == 1
"""
CONNECT = """
import scalable
assert scalable.connect("bench").submit(abs, -1, tag="a").result() == 1
"""
UP = [sys.executable, "-m", "scalable", "up", "--name", "bench", "--format", "quiet"]


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


WAYS = {
    "embedded": [script(SESSION % "")],
    "detached session": [script(SESSION % "detach=True, name='bench'")],
    "scalable up, connect": [UP, script(CONNECT)],
}


def first_result_s(commands: list[list[str]], place: Path) -> float:
    """Seconds until the result is there; what is started then ends outside of the measure."""
    began = time.perf_counter()
    for command in commands[:-1]:
        subprocess.run(command, cwd=place, check=True, timeout=120)
    told = [*commands[-1][:-1], commands[-1][-1] + "\nprint('there', flush=True)"]
    last = subprocess.Popen(told, cwd=place, stdout=subprocess.PIPE, text=True)
    assert last.stdout is not None
    assert last.stdout.readline() == "there\n"
    spent = time.perf_counter() - began
    last.wait(timeout=120)
    last.stdout.close()
    down = [sys.executable, "-m", "scalable", "down", "bench", "--yes", "--format", "quiet"]
    subprocess.run(down, cwd=place, check=True, timeout=120)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        os.environ["XDG_STATE_HOME"] = str(place / "state")
        (place / "scalable.yaml").write_text(MANIFEST)
        spent: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(asked.rounds):
            for way, commands in WAYS.items():
                spent[way].append(first_result_s(commands, place))
        embedded = statistics.median(spent["embedded"])
        for way, seconds in spent.items():
            median = statistics.median(seconds)
            ratio = "" if way == "embedded" else f", {median / embedded:.2f} x; bar {BAR:g} x"
            print(f"{way:22} median {median:.2f} s{ratio}")


if __name__ == "__main__":
    main()
