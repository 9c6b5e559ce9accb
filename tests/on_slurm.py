"""A real Slurm on this machine, as fixtures."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.append(str(SCRIPTS))

from slurm_testbed import INSTALL, SlurmTestbed, missing_programs  # noqa: E402


@contextlib.contextmanager
def running_testbed(**options):
    """Run a private Slurm; it ends with the block, or with this process, whatever ends that."""
    if missing := missing_programs(accounting=options.get("accounting", False)):
        reason = f"NOT TESTED ON SLURM: {', '.join(missing)} not installed; run: {INSTALL}"
        if os.environ.get("SCALABLE_REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    # pytest's directories are too long for the sockets of Slurm and munge.
    directory = tempfile.mkdtemp(prefix="slurm-")
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
        shutil.rmtree(directory, ignore_errors=True)


def lead_to(testbed, monkeypatch):
    for name in os.environ:
        if name.startswith(("SLURM", "SBATCH_")):
            monkeypatch.delenv(name)
    for name, value in testbed.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def slurm():
    """Run a Slurm for all tests of this process; nothing leads to it by itself, see `on_slurm`."""
    with running_testbed() as testbed:
        yield testbed


@pytest.fixture(scope="module")
def accounted_slurm():
    """Run a Slurm with accounting for the tests of one file."""
    with running_testbed(nodes=1, cpus=8, kill_wait=2, accounting=True) as testbed:
        yield testbed


@pytest.fixture
def on_accounting(accounted_slurm, monkeypatch, eventually):
    """The file's Slurm with accounting, for a test that leaves it as it was."""
    yield from led_to(accounted_slurm, monkeypatch, eventually)


@pytest.fixture
def on_slurm(slurm, monkeypatch, eventually):
    """The session's Slurm, for a test that leaves it as it was: commands lead to it."""
    yield from led_to(slurm, monkeypatch, eventually)


def led_to(slurm, monkeypatch, eventually):
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
def own_slurm(monkeypatch):
    """Start a Slurm of the test's own, which it may break: commands lead to the latest."""
    with contextlib.ExitStack() as running:

        def start(**options):
            testbed = running.enter_context(running_testbed(**options))
            lead_to(testbed, monkeypatch)
            return testbed

        yield start
