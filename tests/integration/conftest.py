"""Waiting without guessing, and a real Slurm.

Every wait has a generous bound and says what it waited for.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.append(str(SCRIPTS))

from slurm_testbed import INSTALL, SlurmTestbed, missing_programs  # noqa: E402


@pytest.fixture
def eventually():
    """Wait until a condition holds; the answer of the condition is returned."""

    def wait(condition, what="", timeout=60.0):
        deadline = time.monotonic() + timeout
        while True:
            answer = condition()
            if answer:
                return answer
            assert time.monotonic() < deadline, f"waited {timeout} s in vain: {what or condition}"
            time.sleep(0.05)

    return wait


@contextlib.contextmanager
def running_testbed(directory, **options):
    """A private Slurm; it ends with the block, or with this process, whatever ends that."""
    if missing := missing_programs():
        reason = f"NOT TESTED ON SLURM: {', '.join(missing)} not installed; run: {INSTALL}"
        if os.environ.get("SCALABLE_REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    testbed = SlurmTestbed(directory, **options)
    testbed.start()
    stop = (SCRIPTS / "slurm-testbed", "stop", "--directory", directory, "--after", os.getpid())
    watch = subprocess.Popen(
        [sys.executable, *map(str, stop)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield testbed
    finally:
        testbed.stop()
        watch.kill()
        watch.wait(timeout=30)


def lead_to(testbed, monkeypatch):
    for name in os.environ:
        if name.startswith(("SLURM", "SBATCH_")):
            monkeypatch.delenv(name)
    for name, value in testbed.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """The session's Slurm; nothing leads to it by itself, see `on_slurm`."""
    with running_testbed(tmp_path_factory.mktemp("slurm")) as testbed:
        yield testbed


@pytest.fixture
def on_slurm(slurm, monkeypatch, eventually):
    """The session's Slurm, for a test that leaves it as it was: commands lead to it."""
    lead_to(slurm, monkeypatch)
    yield slurm
    try:
        eventually(lambda: not slurm.jobs(), timeout=30)
    except AssertionError:
        left = slurm.jobs()
        slurm.cancel_jobs()
        eventually(lambda: not slurm.jobs(), "cancelled jobs to end")
        pytest.fail("\n".join(["jobs left in the queue:", *left]))


@pytest.fixture
def own_slurm(tmp_path_factory, monkeypatch):
    """Start a Slurm of the test's own, which it may break: commands lead to the latest."""
    with contextlib.ExitStack() as running:

        def start(**options):
            directory = tmp_path_factory.mktemp("slurm")
            testbed = running.enter_context(running_testbed(directory, **options))
            lead_to(testbed, monkeypatch)
            return testbed

        yield start
