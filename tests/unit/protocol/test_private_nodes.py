"""Directories of nodes that are dropped, or inherited by a fork: removed once, without a word."""

import subprocess
import sys

START = """\
import asyncio, gc, os, sys
from scalable.scheduler.pool_scheduler import PoolScheduler


async def started():
    return PoolScheduler(port=0, dashboard=False, host="127.0.0.1")

node = asyncio.run(started())
path = node.local_directory
assert os.path.isdir(path)
"""


def run(code, tmp_path):
    """Run a program whose nodes have their directories in an empty one."""
    done = subprocess.run(
        # Python 3.12 warns of each fork in a program with threads.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", START + code],
        env={"TMPDIR": str(tmp_path), "DASK_LOGGING__DISTRIBUTED": "warning"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_node_that_was_never_closed_leaves_nothing(tmp_path):
    run("del node; gc.collect()", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_fork_leaves_the_directory_of_its_parent_alone(tmp_path):
    code = """
child = os.fork()
if not child:
    sys.exit(0)  # runs what a process has registered for its end
os.waitpid(child, 0)
print(os.path.isdir(path))
"""
    assert run(code, tmp_path) == "True\n"
    assert list(tmp_path.iterdir()) == []


def test_a_fork_that_outlives_its_parent_s_node_prints_nothing(tmp_path):
    code = """
reads, writes = os.pipe()
child = os.fork()
if not child:
    os.close(writes)
    os.read(reads, 1)
    sys.exit(0)
node._private_directory.release()
os.close(writes)
os.waitpid(child, 0)
"""
    run(code, tmp_path)
    assert list(tmp_path.iterdir()) == []
