"""Benchmarks are run seldom: names that they import can go without anybody seeing it."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_a_benchmark_finds_the_names_that_it_imports(name):
    code = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import {name}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
