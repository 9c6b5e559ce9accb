"""Conditions of all tests: signals, hypothesis, order, waiting, sessions.

Tests run side by side (``make test``), those of one file in one process, one after the other.
"""

import contextlib
import gc
import os
import random
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

# A shell without job control starts background jobs with SIGINT and SIGQUIT ignored, nohup with
# SIGHUP ignored. Children inherit that.
for number, default in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, default)

ROOT = Path(__file__).parents[1]
#: Folders whose tests take long, the longest first.
LONG = ("places", "processes", "docs", "integration", "cli", "providers")

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Return the number of processes: most tests wait more than they compute, those of places less."""
    cores = len(os.sched_getaffinity(0))
    places = any("places" in argument for argument in config.args)
    return min(3 * cores // 2 if places else 2 * cores, 16)


def pytest_addoption(parser):
    parser.addoption("--order", help="order of the files: a seed, or random for a new one")


def pytest_configure(config):
    if config.option.order == "random":
        config.option.order = str(random.randrange(10**6))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell the processes beside this one its order."""
    node.workerinput["order"] = node.config.option.order


def pytest_report_header(config):
    return f"order of the files: {config.option.order or 'those that take long come first'}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Put first what takes long, or all would wait for it at the end; or shuffle the files."""
    seed = getattr(config, "workerinput", {}).get("order", config.option.order)
    if seed is not None:
        paths = sorted({item.path for item in items})
        random.Random(seed).shuffle(paths)
        place = {path: number for number, path in enumerate(paths)}
        items.sort(key=lambda item: place[item.path])
    elif hasattr(config, "workerinput"):
        sizes = Counter(item.path for item in items)

        def order(item):
            folder = item.path.relative_to(ROOT / "tests").parts[0]
            rank = LONG.index(folder) if folder in LONG else len(LONG)
            return rank, -sizes[item.path], str(item.path)

        items.sort(key=order)


def pytest_collection_finish():
    """Leave modules and thousands of tests out of each later collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Run a test that is marked ``own_process`` in a process of its own: it looks at all that one has."""
    if "OWN_PROCESS" in os.environ or item.get_closest_marker("own_process") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for when in ("setup", "call", "teardown"):
        call = pytest.CallInfo.from_call(_in_own_process(item) if when == "call" else bool, when)
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _in_own_process(item):
    pytest_here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]

    def run():
        done = subprocess.run(
            [*pytest_here, f"{item.path}::{item.nodeid.partition('::')[2]}"],
            cwd=ROOT, env={**os.environ, "OWN_PROCESS": "1"}, check=False, timeout=120,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            pytest.fail(done.stdout, pytrace=False)

    return run


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
    process = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait(10)


@pytest.fixture(scope="module", autouse=True)
def nothing_passes_to_the_next_file(request, tmp_path_factory):
    """Forget the modules that a file of tests wrote and imported; another file's have their names.

    What it left open is found now, and told as an error of the file.
    """
    yield
    gc.collect()
    gc.freeze()  # or a later collection takes a second, after thousands of tests
    written = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(written):
            del sys.modules[name]


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


@pytest.fixture(scope="module")
def session(request, running_session):
    """Run the MANIFEST of a file, and wait for that number of WORKERS."""
    with running_session(request.module.MANIFEST, request.module.WORKERS) as session:
        yield session


@pytest.fixture(scope="module")
def client(session):
    """Return the client of the file's session."""
    return session.client


@pytest.fixture
def gate(tmp_path):
    """Return a path for which tasks wait; the file exists after the test at the latest."""
    path = tmp_path / "gate"
    yield path
    path.touch()


@pytest.fixture(scope="module")
def lost_soon():
    """Have workers that have left replaced soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scalable.manager.units.LOST_WORKER_GRACE_S", 0.3)
        yield
