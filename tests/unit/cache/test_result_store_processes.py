"""Several processes on one store: full disks, other users, read-only directories."""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scalable.cache.key import CallKey
from scalable.cache.store import ResultStore

DIGESTS = [f"{number:064x}" for number in range(4)]
KEY = CallKey(DIGESTS[0], {}, "f")


def started(text, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", text, *arguments], stdout=subprocess.PIPE, text=True, **options
    )


LIMITED = """
import resource, signal, sys
from scalable.cache.key import CallKey
from scalable.cache.store import ResultStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = ResultStore.open(sys.argv[1])
for key in sys.argv[2:]:
    assert store.put(CallKey(key, {}, "f"), bytearray(3_000_000), cost_s=0) is None
assert store.put(CallKey(sys.argv[2], {}, "f"), "small", cost_s=0)
"""


def test_a_result_without_room_is_left_out_with_one_warning(tmp_path, files_of):
    url = ResultStore.open(tmp_path / "results").url
    process = started(LIMITED, url, *DIGESTS, stderr=subprocess.PIPE)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors
    assert errors.count("are not cached") == 1
    assert ResultStore.open(url).get(KEY).value() == "small"
    assert len(files_of(ResultStore(url))) == 1
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100_000


AS_NOBODY = """
import os, sys
from scalable import cached
from scalable.cache.key import CallKey
from scalable.cache.store import ResultStore
store, key = ResultStore(sys.argv[1]), CallKey(sys.argv[2], {}, "f")
os.chown(sys.argv[1].removeprefix("file://"), 65533, 65533)
os.setuid(65534)
assert store.get(key) is None
assert store.put(key, 1, cost_s=0) is None
double = cached(store=store.url)(lambda x: 2 * x)
assert [double(3), double(3)] == [6, 6]
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
    store.put(KEY, "mine", cost_s=2)
    for path in reachable.rglob("*"):
        path.chmod(0o755)
    with started(AS_NOBODY, store.url, KEY.digest, stderr=subprocess.PIPE) as process:
        errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors
    assert len(errors.splitlines()) == 2  # for each of the two store objects
    assert errors.count("belongs to another user (uid 65533)") == 2


READ_ONLY = """
import os, sys
from scalable.cache.key import CallKey
from scalable.cache.store import ResultStore
os.chown(sys.argv[1].removeprefix("file://"), 65534, 65534)
for folder, _, files in os.walk(sys.argv[1].removeprefix("file://"), topdown=False):
    for name in files:
        os.chown(os.path.join(folder, name), 65534, 65534)
    os.chown(folder, 0, 0)
    os.chmod(folder, 0o755)
os.setuid(65534)
store = ResultStore(sys.argv[1])
key = CallKey(sys.argv[2], {}, "f")
for _ in range(2):
    assert store.get(key).value() == "mine"
    assert store.put(key, 1, cost_s=0) is None
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_store_that_cannot_be_written_is_still_read(reachable):
    store = ResultStore.open(reachable / "results")
    store.put(KEY, "mine", cost_s=2)
    with started(READ_ONLY, store.url, KEY.digest, stderr=subprocess.PIPE) as process:
        errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors
    assert errors.count("are not cached") == len(errors.splitlines()) == 1
