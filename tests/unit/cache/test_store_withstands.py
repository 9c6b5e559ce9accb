"""Processes killed at each step, full disks, wrong clocks, stores of other versions."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from scalable import cached
from scalable.cache import key as key_module
from scalable.cache.key import CallKey
from scalable.cache.store import ResultStore, path_of

KEY = CallKey("ab" * 32, {}, "f")

#: Forks processes of one thread that run a remembered call, each killed one step later than the one
#: before, and another process after each that runs the same call.
KILLED_AT_EACH_STEP = """
import os, signal, sys
from scalable.cache.calls import CachedFunction
from scalable.cache.key import CallKey
from scalable.cache.store import ResultStore

STEPS = (
    "open", "write", "writev", "fsync", "close", "rename", "link", "unlink", "utime", "mkdir",
    "rmdir", "scandir",
)
url, log = sys.argv[1:3]

# Results of many functions, or a store that is pruned.
LIMIT, FUNCTION = (10**9, "value{}") if len(sys.argv) == 3 else (1_500_000, "value")

def key_of(number):
    return CallKey(f"{number:064x}", {"number": str(number)}, FUNCTION.format(number))

def value(number):
    os.write(os.open(log, os.O_WRONLY | os.O_APPEND), b"ran ")
    return bytearray([number % 251]) * 200_000

def call(number):
    return CachedFunction(value, ResultStore(url, LIMIT), key_of(number))(number)

def forked(run):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        run()
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)

def killed_at(step, number):
    left = [step]
    def counting(real):
        def counted(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)
        return counted
    for name in STEPS:
        setattr(os, name, counting(getattr(os, name)))
    call(number)

def again(number):
    store = ResultStore(url)
    store.get(key_of(number))
    assert store.fault_of(key_of(number)) is None  # nothing torn
    assert call(number) == bytearray([number % 251]) * 200_000
    assert call(number) == bytearray([number % 251]) * 200_000

for step in range(1, 1000):
    ended = forked(lambda: killed_at(step, step))
    assert forked(lambda: again(step)) == 0, step
    if ended == 0:
        break
    assert ended == signal.SIGKILL, ended
print(step)
"""


def finished(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def are_whole(store):
    """Return whether all results can be read."""
    found = [(one, store.described(one)) for one in store.stored()]
    keys = [CallKey(one.key, entry.parts, entry.function) for one, entry in found]
    return None not in map(store.get, keys)


@pytest.mark.parametrize("pruning", [False, True])
def test_a_process_killed_at_any_step_leaves_a_store_for_the_next(tmp_path, pruning):
    store, log = ResultStore.open(tmp_path / "results"), tmp_path / "log"
    log.touch()
    steps = int(finished(KILLED_AT_EACH_STEP, store.url, log, *["pruning"] * pruning).stdout)
    assert steps > 8
    # The result of each call is right and there, whether its first process had stored it or not.
    assert pruning or len(list(store.stored())) == steps
    assert are_whole(store)
    assert steps < log.read_text().count("ran") < 2 * steps + pruning


ON_A_FULL_DISK = """
import sys
from scalable import cached
ran = []
def double(x, log):
    log.append(x)
    return {"value": 2 * x, "data": bytes(10_000)}
remembered = cached(store=sys.argv[1], ignore=["log"])(double)
for x in list(range(40)) * 2:
    assert remembered(x, ran)["value"] == 2 * x
print(len(ran))
"""


@pytest.fixture
def small_disk(tmp_path):
    """Make a file system of 256 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = shutil.which("mount")
    options = ("-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(path))
    if os.geteuid() != 0 or mount is None or subprocess.call([mount, *options], stderr=-3):
        pytest.skip("only root can mount a small file system")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_calls_go_on_with_one_warning_when_the_disk_is_full(small_disk, files_of):
    done = finished(ON_A_FULL_DISK, small_disk / "results")
    assert 45 < int(done.stdout) < 80  # those for which there was room ran once
    assert done.stderr.count("are not cached") == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    store = ResultStore.open(small_disk / "results")
    assert are_whole(store)
    assert not [path for path in files_of(store) if path.name.startswith(".")]


def test_calls_go_on_with_one_warning_when_nothing_at_all_can_be_written(small_disk):
    ResultStore.open(small_disk / "results")
    with (small_disk / "filled").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    done = finished(ON_A_FULL_DISK, small_disk / "results")
    assert int(done.stdout) == 80
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("hours", [-100_000, -5, 5, 100_000])
def test_times_of_entries_that_are_wrong_by_hours_change_no_result(tmp_path, monkeypatch, hours):
    store = ResultStore.open(tmp_path / "results")
    real = time.time
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: real() + hours * 3600)
        store.put(KEY, "kept", cost_s=2.0)
    path = Path(tmp_path / "results" / path_of(KEY))
    then = real() + hours * 3600
    os.utime(path, (then, then))
    other = ResultStore(store.url)
    assert other.get(KEY).value() == "kept"
    # It was used now, by the clock of the file server.
    assert abs(path.stat().st_mtime - real()) < 60
    assert other.prune(limit=1 << 20, max_age_s=3600).left.entries == 1
    assert other.prune(limit=0).removed == 1


def test_results_of_another_version_of_the_key_are_not_found(tmp_path, monkeypatch):
    ran = []

    def double(x, log):
        log.append(x)
        return 2 * x

    remembered = cached(store=tmp_path, ignore=["log"])(double)
    versions = ("0", key_module.KEY_VERSION, "0", key_module.KEY_VERSION)
    for version in versions:
        monkeypatch.setattr(key_module, "KEY_VERSION", version)
        assert remembered(3, ran) == 6
    assert len(ran) == 2
