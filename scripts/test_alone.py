"""Run each file of tests alone, or pairs of files in both orders: no file may need another.

Usage: python scripts/test_alone.py [--pairs N] [--seed S] [--jobs J] [FOLDER_OR_FILE...]

Prints a line for each run that fails, and the number of runs; exits with 1 if one failed.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("unit", "property", "cli", "docs", "providers", "integration", "processes")
TIER = [f"tests/{name}" for name in FOLDERS]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow")
NO_TESTS = 5  # pytest's exit status where all tests of a file are slow


def files_in(places: list[str]) -> list[str]:
    """Return the files of tests in folders, and the files among the arguments."""
    found = itertools.chain.from_iterable(
        [path] if path.is_file() else path.rglob("test_*.py") for path in map(Path, places)
    )
    return sorted({str(path) for path in found})


def passes(files: tuple[str, ...]) -> bool:
    """Run files in one process, in this order; print what failed."""
    done = subprocess.run(
        [*PYTEST, *files], cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800
    )
    if done.returncode in (0, NO_TESTS):
        return True
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    print(f"{' '.join(files)}: exit status {done.returncode}", *failed, sep="\n  ", flush=True)
    return False


def main() -> int:
    """Run all runs; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=0, help="number of pairs; 0: each file alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("places", nargs="*", default=TIER)
    given = parser.parse_args()
    files = files_in(given.places)
    runs: list[tuple[str, ...]] = [(file,) for file in files]
    if given.pairs:
        drawn = random.Random(given.seed).sample(  # noqa: S311
            list(itertools.combinations(files, 2)), given.pairs
        )
        runs = [order for one, other in drawn for order in ((one, other), (other, one))]
    with ThreadPoolExecutor(given.jobs) as threads:
        passed = list(threads.map(passes, runs))
    print(f"{sum(passed)} of {len(passed)} runs passed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
