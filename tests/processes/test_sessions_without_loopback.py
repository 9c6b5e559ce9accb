"""Sessions where the loopback interface does not work."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from scalable import ScalableSession
with ScalableSession.local({"a": 1}, processes=sys.argv[1] == "processes") as client:
    print(client.submit(abs, -2, tag="a").result())
"""
#: Commands that leave a new network namespace without loopback, or with that of IPv6 alone.
NETWORKS = {"down": "true", "IPv6 only": "ip link set lo up && ip -4 addr flush dev lo"}


@pytest.fixture(params=NETWORKS)
def run(request):
    """Run a script in a network namespace of its own."""
    start = ["unshare", "--net", "sh", "-c", f'{NETWORKS[request.param]} && exec "$0" "$@"']

    def run(*command):
        return subprocess.run(
            [*start, *command], capture_output=True, text=True, timeout=120, check=False
        )

    try:
        usable = run("true").returncode == 0
    except FileNotFoundError:
        usable = False
    if not usable:
        pytest.skip("a network namespace needs unshare, ip and root's rights")
    return run


def test_a_session_with_processes_says_that_loopback_does_not_work(run):
    done = run(sys.executable, "-c", SCRIPT, "processes")
    assert (done.returncode, done.stdout) == (1, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: workers that are processes connect to 127.0.0.1, which fails")
    assert "bring the interface lo up" in hint


@pytest.mark.parametrize("run", ["down"], indirect=True)
def test_a_session_with_threads_needs_no_loopback(run):
    # Dask warns that it finds no address of this host.
    done = run(sys.executable, "-W", "ignore::RuntimeWarning", "-c", SCRIPT, "threads")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
