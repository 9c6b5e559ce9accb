"""Conditions of all tests: signals, hypothesis, order, waiting, sessions.

Tests run side by side (``make test``), those of one file in one process, one after the other.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import hypothesis
import pytest
from hypothesis.configuration import set_hypothesis_home_dir

# A shell without job control starts background jobs with SIGINT ignored, which children inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
#: Folders whose tests take long, the longest first.
LONG = ("integration", "docs", "cli", "providers")
#: Files that take longest: each is one process's work, and the last of them ends the run.
LONGEST = (
    "test_kubernetes_detached.py",
    "test_clouds_detached.py",
    "test_clouds.py",
    "test_documents.py",
    "test_detached_kills.py",
    "test_slurm.py",
    "test_local_processes.py",
    "test_documents_clouds.py",
)

set_hypothesis_home_dir(ROOT / ".cache" / "hypothesis")
SLOW_MACHINES = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "quick", max_examples=40, deadline=None, derandomize=True, suppress_health_check=SLOW_MACHINES
)
hypothesis.settings.register_profile(
    "thorough", max_examples=1000, deadline=None, suppress_health_check=SLOW_MACHINES
)
hypothesis.settings.load_profile("quick")


# Side by side -------------------------------------------------------------------------------------


def pytest_xdist_auto_num_workers():
    """Return the number of processes: most tests wait more than they compute."""
    return min(2 * len(os.sched_getaffinity(0)), 16)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Put first what takes long, or all would wait for it at the end."""
    if hasattr(config, "workerinput"):
        sizes = Counter(item.path for item in items)

        def order(item):
            folder = item.path.relative_to(ROOT / "tests").parts[0]
            rank = LONG.index(folder) if folder in LONG else len(LONG)
            others = item.path.name not in LONGEST
            return others, rank, -sizes[item.path], str(item.path)

        items.sort(key=order)


# Fixtures -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory):
    """Run in an empty directory with a state and a temporary directory of its own.

    Nothing is written into the repository, and what killed workers leave is removed in the end.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        temporary = tempfile.mkdtemp(prefix="tests-")  # a short path: it may hold sockets
        Path(temporary).chmod(0o1777)  # some tests run programs of other users
        patch.setenv("TMPDIR", temporary)
        patch.setattr(tempfile, "tempdir", temporary)
        yield
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture(scope="session")
def eventually():
    """Wait until a condition holds; the answer of the condition is returned.

    Looking takes at most half of the time: a condition that connects somewhere would slow down what
    is waited for.
    """

    def wait(condition, what="", timeout=60.0):
        deadline = time.monotonic() + timeout
        while True:
            began = time.monotonic()
            answer = condition()
            if answer:
                return answer
            now = time.monotonic()
            assert now < deadline, f"waited {timeout} s in vain: {what or condition}"
            time.sleep(min(max(now - began, 0.05), 1.0))

    return wait


@pytest.fixture
def child():
    """Run a process that does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait(10)


@pytest.fixture(scope="session")
def kubernetes_bed():
    """Run a Kubernetes cluster on this machine; see the package `kubernetes_bed`."""
    reason = missing_for_kubernetes()
    if os.environ.get("SCALABLE_REQUIRE_KUBERNETES") and reason:
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    from kubernetes_bed import KubernetesBed

    with KubernetesBed() as bed:
        yield bed


def missing_for_kubernetes():
    """Return why the Kubernetes test bed cannot run here, "" if it can."""
    for name in ("aiohttp", "kubernetes_asyncio", "kubernetes_validate"):
        if importlib.util.find_spec(name) is None:
            return f"the Kubernetes test bed needs the Python package {name}"
    from kubernetes_bed import unavailable

    return unavailable()


@pytest.fixture(scope="module", autouse=True)
def own_modules(tmp_path_factory):
    """Forget the modules that a file of tests wrote and imported: another file's have their names."""
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(written):
            del sys.modules[name]


# One for each file: what a file leaves running is not found by the next.
@pytest.fixture(scope="module")
def aws_bed():
    """Run an AWS account on this machine; see the package `aws_bed`."""
    reason = missing_for_aws()
    if os.environ.get("SCALABLE_REQUIRE_AWS") and reason:
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    from aws_bed import AwsBed

    with AwsBed() as bed:
        yield bed


def missing_for_aws():
    """Return why the AWS test bed cannot run here, "" if it can."""
    for name in ("aiobotocore", "aiohttp", "boto3", "flask", "flask_cors", "moto"):
        if importlib.util.find_spec(name) is None:
            return f"the AWS test bed needs the Python package {name}"
    from kubernetes_bed.container import unavailable

    return unavailable()


@pytest.fixture(scope="session")
def gcp_bed():
    """Run a Google Cloud on this machine; see the package `gcp_bed`."""
    if reason := missing_for_gcp():
        if os.environ.get("SCALABLE_REQUIRE_GCP"):
            pytest.fail(reason)
        pytest.skip(reason)
    from gcp_bed import GcpBed

    with GcpBed() as bed:
        yield bed


def missing_for_gcp():
    """Return why the Google Cloud test bed cannot run here, "" if it can."""
    for name in ("aiohttp", "googleapiclient", "google.cloud.compute", "google.auth"):
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"the Google Cloud test bed needs the Python package of {name}"
    from gcp_bed import unavailable

    return unavailable()


@pytest.fixture(scope="session")
def running_session(tmp_path_factory):
    """Run a session from a manifest's text, with a directory and a state of its own."""

    @contextlib.contextmanager
    def run(manifest, workers):
        from scalable import ScalableSession

        place = tmp_path_factory.mktemp("session")
        (place / "scalable.yaml").write_text(manifest)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)
            patch.setenv("XDG_STATE_HOME", str(place / "state"))
            session = ScalableSession.from_yaml()
            try:
                session.start().wait_for_workers(workers, timeout=60)
                yield session
            finally:
                session.close()

    return run
