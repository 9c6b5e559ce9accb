"""CPU time of the commands that start nothing: help, validate and plan.

    python benchmarks/commands.py [--rounds 7]

Each value is the median user and system time of the process; bars are for an idle machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from startup import MANIFEST, cpu_ms

BARS = (("--help", 150), ("validate", 180), ("plan", 260))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as for users
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "scalable.yaml").write_text(MANIFEST)
        for verb, bar in BARS:
            command = [sys.executable, "-m", "scalable", verb]
            cpu_ms(command, directory)
            spent = [cpu_ms(command, directory) for _ in range(rounds)]
            print(f"scalable {verb}: median {statistics.median(spent):.0f} CPU-ms; bar {bar}")


if __name__ == "__main__":
    main()
