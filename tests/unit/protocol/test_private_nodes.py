"""Directories of nodes that are dropped, or inherited by a fork: removed once, without a word."""

import subprocess
import sys

PROGRAM = """\
import asyncio, gc, os, sys
from scalable.scheduler.pool_scheduler import PoolScheduler


async def started():
    return PoolScheduler(port=0, dashboard=False, host="127.0.0.1")

node = asyncio.run(started())
path = node.local_directory
assert os.path.isdir(path)
child = os.fork()
if not child:
    sys.exit(0)  # runs what a process has registered for its end
os.waitpid(child, 0)
print("after a fork:", os.path.isdir(path), flush=True)

reads, writes = os.pipe()
child = os.fork()
if not child:
    os.close(writes)
    os.read(reads, 1)
    sys.exit(0)  # it outlives its parent's node, and prints nothing
node._private_directory.release()
os.close(writes)
os.waitpid(child, 0)
print("after the release:", os.path.isdir(path), flush=True)

node = asyncio.run(started())  # never closed
path = node.local_directory
del node
gc.collect()
print("without a node:", os.path.isdir(path), flush=True)
"""


def test_directories_are_left_alone_by_forks_and_removed_with_their_node(tmp_path):
    done = subprocess.run(
        # Python 3.12 warns of each fork in a program with threads.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM],
        env={"TMPDIR": str(tmp_path), "DASK_LOGGING__DISTRIBUTED": "warning"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = ["after a fork: True", "after the release: False", "without a node: False"]
    assert done.stdout.splitlines() == found
    assert list(tmp_path.iterdir()) == []
