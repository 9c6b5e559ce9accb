"""Benchmarks are run seldom: names that they import can go without anybody seeing it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Each is imported in a fork of a process that has loaded what most of them need.
IMPORTING = """\
import importlib, json, os, sys, traceback
import distributed, scalable.session.session
sys.path.insert(0, sys.argv[1])
failed = {}
for name in sys.argv[2:]:
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(writing, 2)
        try:
            importlib.import_module(name)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(writing)
    with open(reading) as said:
        text = said.read()
    if os.wait()[1]:
        failed[name] = text
print(json.dumps(failed))
"""


def test_benchmarks_find_the_names_that_they_import():
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
    assert "throughput" in names
    command = [sys.executable, "-c", IMPORTING, str(BENCHMARKS), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    assert not failed, "\n".join(failed.values())


@pytest.mark.slow
@pytest.mark.parametrize("command", ["placement.py --calls 20", "scale.py --workers 5 --calls 200"])
def test_benchmarks_run_to_their_end(command):
    name, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, BENCHMARKS / name, *arguments],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "unrestricted" in done.stdout or "| submit | 5 | scalable |" in done.stdout
