"""Several processes on one store: kills, full disks, single-flight."""

import hashlib
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scalable.cache.store import ResultStore

KEYS = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(500)]
FACTS = {"parts": {"a": "b"}, "function": "f", "cost_s": 2.0}


def started(text, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", text, *arguments], stdout=subprocess.PIPE, text=True, **options
    )


LIMITED = """
import resource, signal, sys
from scalable.cache.store import ResultStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = ResultStore.open(sys.argv[1])
for key in sys.argv[2:]:
    assert store.put(key, bytearray(3_000_000), parts={}, function="f", cost_s=0) is None
assert store.put(sys.argv[2], "small", parts={}, function="f", cost_s=0)
assert store.reports.counts["unwritten"] == len(sys.argv) - 2
"""


def test_a_result_for_which_there_is_no_room_is_left_out_with_one_warning(tmp_path):
    url = ResultStore.open(tmp_path / "results").url
    process = started(LIMITED, url, *KEYS[:4], stderr=subprocess.PIPE)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors
    assert errors.count("are not cached") == 1
    assert ResultStore.open(url).get(KEYS[0]).value() == "small"
    assert not list((tmp_path / "results" / "entries").rglob(".*"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100_000


AS_NOBODY = """
import os, sys
from scalable.cache.store import ResultStore
store = ResultStore(sys.argv[1])
os.setuid(65534)
assert store.get(sys.argv[2]) is None
assert store.put(sys.argv[2], 1, parts={}, function="f", cost_s=0) is None
assert not store.lease(sys.argv[2], "nobody").excludes
"""


@pytest.fixture
def reachable():
    """Make a directory that other users reach, which those of pytest are not side by side."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_neither_reads_nor_writes_even_where_files_are_open_to_all(reachable):
    store = ResultStore.open(reachable / "results")
    store.put(KEYS[0], "mine", **FACTS)
    for path in reachable.rglob("*"):
        path.chmod(0o755)
    with started(AS_NOBODY, store.url, KEYS[0], stderr=subprocess.PIPE) as process:
        errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors
    assert "belongs to another user (uid 0)" in errors
    assert store.get(KEYS[0]).value() == "mine"


READ_ONLY = """
import os, sys
from scalable.cache.store import ResultStore
os.chown(sys.argv[1].removeprefix("file://"), 65534, 65534)
for folder, _, files in os.walk(sys.argv[1].removeprefix("file://"), topdown=False):
    for name in files:
        os.chown(os.path.join(folder, name), 65534, 65534)
    os.chown(folder, 0, 0)
    os.chmod(folder, 0o755)
os.setuid(65534)
store = ResultStore(sys.argv[1])
assert store.get(sys.argv[2]).value() == "mine"
assert store.put(sys.argv[2], 1, parts={}, function="f", cost_s=0) is None
assert not store.lease(sys.argv[2], "nobody").excludes
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_store_that_cannot_be_written_is_still_read(reachable):
    store = ResultStore.open(reachable / "results")
    store.put(KEYS[0], "mine", **FACTS)
    with started(READ_ONLY, store.url, KEYS[0], stderr=subprocess.PIPE) as process:
        errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors
