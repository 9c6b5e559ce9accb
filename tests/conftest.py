"""Conditions of all tests: signals, hypothesis, groups for tests side by side, waiting, sessions.

Tests run side by side (``make test``): a test that has a cluster of its own runs anywhere; tests
that share one run in one process, one after the other.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

import hypothesis
import pytest
from hypothesis.configuration import set_hypothesis_home_dir

# A shell without job control starts background jobs with SIGINT ignored, which children inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
#: Each test of these folders is quick to collect and slow to run; tests elsewhere run by file.
SPREAD = ("integration", "docs", "cli", "providers")

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
    return min(3 * len(os.sched_getaffinity(0)), 16)


def shared_fixtures(item):
    """Return the fixtures of a test that other tests of its file use too, with their parameters."""
    parameters = getattr(item, "callspec", None)
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        own = definitions[-1].baseid.endswith(".py") or name == "slurm"
        if own and definitions[-1].scope != "function":
            yield name, str(parameters.params.get(name, "")) if parameters else ""


def group_of(item):
    """Return the name that a test shares with those that must run in the same process."""
    folder = item.path.relative_to(ROOT / "tests").parts[0]
    if folder not in SPREAD:
        return str(item.path)
    shared = dict(shared_fixtures(item))
    if not shared:
        return item.nodeid
    return " ".join([str(item.path), *filter(None, shared.values())])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Group the tests for xdist; what takes long comes first, or all would wait for it at the end."""
    if not hasattr(config, "workerinput"):
        return
    sizes = {}
    for item in items:
        marked = item.get_closest_marker("xdist_group")
        if marked is None:
            item.add_marker(pytest.mark.xdist_group(group_of(item)))
            marked = item.get_closest_marker("xdist_group")
        sizes[marked.args[0]] = sizes.get(marked.args[0], 0) + 1

    def order(item):
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        rank = SPREAD.index(folder) if folder in SPREAD else len(SPREAD)
        return rank, -sizes[item.get_closest_marker("xdist_group").args[0]]

    items.sort(key=order)


# Fixtures -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory):
    """Run in an empty directory with a state of its own: nothing is written into the repository."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
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
