"""The right to compute a result: one at a time among all processes that share a store."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from scalable.cache.leases import Leases
from scalable.cache.outcomes import Waited
from scalable.cache.store import ResultStore

KEY = hashlib.sha256(b"a call").hexdigest()
OTHER = hashlib.sha256(b"another task").hexdigest()
FACTS = {"parts": {}, "function": "f", "cost_s": 1.0}


@pytest.fixture
def second(store):
    """Return the store as another process has it."""
    return ResultStore.open(store.url)


def folder(store):
    return store._place.path / "leases"


def age(store, key=KEY, seconds=3600):
    """Make the lease of a key look as if it had not been renewed for so long."""
    path = folder(store) / key
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_a_lease_is_had_by_one_until_it_is_released(store, second):
    lease = store.lease(KEY, "one")
    assert lease.excludes
    assert lease.is_held()
    assert second.lease(KEY, "two") is None
    assert store.lease(KEY, "one") is None  # another task of the same process
    assert store.lease(KEY, "three") is None
    assert second.lease(OTHER, "two") is not None
    assert second.holder(KEY).owner == "one"
    assert second.holder(KEY).process == os.getpid()
    lease.release()
    lease.release()
    assert not lease.is_held()
    with second.lease(KEY, "two") as taken:
        assert taken.is_held()
    assert not (folder(store) / KEY).exists()


def test_a_lease_that_is_not_renewed_is_taken_over(store, second):
    lease = store.lease(KEY, "one")
    age(store)
    taken = second.lease(KEY, "two")
    assert taken.is_held()
    assert not lease.is_held()
    lease.release()  # leaves the other's alone
    assert taken.is_held()
    assert store.lease(KEY, "one") is None


def test_a_lease_whose_taker_died_on_the_way_is_taken_over(store, second, monkeypatch):
    store.lease(KEY, "one")
    age(store)
    monkeypatch.setattr("pathlib.Path.rename", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    second._leases._fresh("two")
    with pytest.raises(OSError, match="killed"):
        second._leases.take(KEY, "two")
    monkeypatch.undo()
    (begun,) = [p for p in folder(store).iterdir() if p.name.startswith(KEY + ".")]
    third = ResultStore.open(store.url)
    assert third.lease(KEY, "three") is None  # the taker may still be alive
    old = begun.stat().st_mtime - 3600
    os.utime(begun, (old, old))
    assert third.lease(KEY, "three").is_held()


def test_one_of_many_takes_a_stale_lease_over(store, at_once):
    for round_ in range(10):
        key = hashlib.sha256(str(round_).encode()).hexdigest()
        store.lease(key, f"gone {round_}")
        age(store, key)
        stores = [ResultStore(store.url) for _ in range(8)]
        taken = at_once(lambda one, key=key: one.lease(key, "taker"), stores)
        assert sum(lease is not None for lease in taken) == 1


@pytest.mark.parametrize("skew", [-86400, 86400])
def test_clocks_of_machines_do_not_matter(store, second, monkeypatch, skew):
    lease = store.lease(KEY, "one")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew)
    assert second.lease(KEY, "two") is None
    assert not second._leases.is_free(KEY)
    age(store)
    assert second.lease(KEY, "two") is not None
    lease.release()


def test_leases_are_renewed_while_there_are_any(tmp_path, eventually):
    leases = Leases(tmp_path, stale_s=60, renewed_s=0.02)
    one, two = leases.take(KEY, "me"), leases.take(OTHER, "me")
    path = tmp_path / "leases" / KEY
    assert path.samefile(tmp_path / "leases" / OTHER)
    os.utime(path, (1, 1))
    eventually(lambda: path.stat().st_mtime > 1)
    one.release()
    path = tmp_path / "leases" / OTHER
    os.utime(path, (1, 1))
    eventually(lambda: path.stat().st_mtime > 1)
    two.release()
    eventually(lambda: leases._renewing is None)
    assert leases.take(KEY, "me").is_held()


def killed_with_the_lease(store):
    """Let another process take the lease, and kill it."""
    script = (
        "import os, sys; from scalable.cache.store import ResultStore\n"
        "assert ResultStore.open(sys.argv[1]).lease(sys.argv[2], 'killed')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, store.url, KEY], check=False, timeout=120)
    assert store.holder(KEY).owner == "killed"


def test_the_lease_of_a_process_that_was_killed_here_can_be_taken_at_once(store):
    killed_with_the_lease(store)
    assert store._leases.is_free(KEY)
    assert store.lease(KEY, "me").is_held()


def on_another_machine(store, **other):
    """Make the holder's file look as if another machine had written it."""
    path = folder(store) / KEY
    document = json.loads(path.read_text())
    document["process"] |= other
    status = path.stat()
    path.write_text(json.dumps(document))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    "other", [{"host": "other"}, {"boot_id": "other"}, {"boot_id": None}, {"pid_namespace": "4"}]
)
def test_the_lease_of_a_process_killed_elsewhere_can_be_taken_when_it_is_stale(store, other):
    killed_with_the_lease(store)
    on_another_machine(store, **other)
    assert not store._leases.is_free(KEY)
    assert store.lease(KEY, "me") is None
    age(store)
    assert store.lease(KEY, "me").is_held()


@pytest.mark.parametrize("hours", [-1, 1, 1000])
def test_a_lease_is_taken_when_a_clock_that_was_set_back_would_keep_it(tmp_path, hours, eventually):
    leases = Leases(tmp_path, stale_s=0.3, renewed_s=0.05)
    store = ResultStore.open(tmp_path)
    killed_with_the_lease(store)
    on_another_machine(store, host="other")
    age(store, seconds=-hours * 3600)
    began = time.monotonic()
    eventually(lambda: leases.is_free(KEY))
    assert hours < 0 or time.monotonic() - began >= 0.3
    assert leases.take(KEY, "me").is_held()


def test_a_lease_that_is_renewed_is_not_taken_whatever_its_time_is(tmp_path):
    store, leases = ResultStore.open(tmp_path), Leases(tmp_path, stale_s=0.3, renewed_s=0.05)
    store.lease(KEY, "one")
    on_another_machine(store, host="other")
    end = time.monotonic() + 1
    while time.monotonic() < end:
        age(store, seconds=-3600)  # ahead, and renewed
        assert not leases.is_free(KEY)
        time.sleep(0.02)


@pytest.mark.parametrize("text", ["", "[]", "5", '{"process": 5}', '{"process": {}}', "\xff"])
def test_a_lease_that_does_not_tell_its_holder_is_kept_until_it_is_stale(store, second, text):
    store.lease(KEY, "one")
    (folder(store) / KEY).write_text(text)
    assert second.lease(KEY, "two") is None
    assert second.holder(KEY) is None
    age(store)
    assert second.lease(KEY, "two").is_held()


def test_a_forked_process_does_not_have_the_leases_of_its_parent(store):
    lease = store.lease(KEY, "parent")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            lease.release()
            code = 0 if store.lease(KEY, "child") is None else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert lease.is_held()


def test_an_answer_that_was_lost_on_the_way_does_not_lose_the_lease(store, monkeypatch):
    real = os.link

    def repeated(source, target):
        real(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", repeated)
    lease = store.lease(KEY, "me")
    assert lease.is_held()
    assert store.lease(KEY, "me") is None


def test_waiting_ends_when_the_result_is_stored(store, second):
    lease = store.lease(KEY, "one")

    def compute():
        store.put(KEY, 5, **FACTS)
        lease.release()

    timer = threading.Timer(0.2, compute)
    timer.start()
    assert second.wait_for(KEY, lambda: False, timeout_s=60) is Waited.STORED
    timer.join()


def test_waiting_ends_when_nobody_computes(store, second):
    assert second.wait_for(KEY, lambda: False) is Waited.FREE
    lease = store.lease(KEY, "one")
    timer = threading.Timer(0.2, lease.release)
    timer.start()
    assert second.wait_for(KEY, lambda: False, timeout_s=60) is Waited.FREE
    timer.join()
    store.lease(KEY, "one")
    age(store)
    assert second.wait_for(KEY, lambda: False, timeout_s=60) is Waited.FREE


def test_waiting_can_be_given_up_and_is_bounded(store, second):
    store.lease(KEY, "one")
    asked = []
    assert second.wait_for(KEY, lambda: asked.append(1) or len(asked) == 3) is Waited.CANCELLED
    assert second.wait_for(KEY, lambda: False, timeout_s=0.05) is Waited.LATE


def test_files_of_leases_that_are_gone_are_collected(store, second):
    store.lease(KEY, "one").release()
    assert len(list(folder(store).iterdir())) == 1
    second.lease(OTHER, "two")
    for path in folder(store).iterdir():
        if path.name.startswith("."):
            os.utime(path, (1, 1))
    os.utime(folder(store) / OTHER)
    assert second.collect().leftovers == 1
    assert store.lease(KEY, "one").is_held()  # makes its file again


def test_a_directory_without_leases_gives_one_that_excludes_nobody(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    store = ResultStore(tmp_path / "file")
    for _ in range(2):
        with store.lease(KEY, "me") as lease:
            assert not lease.excludes
            assert not lease.is_held()
    assert len(caplog.records) == 1
    assert store.wait_for(KEY, lambda: False) is Waited.FREE
