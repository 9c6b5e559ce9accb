"""The earlier result with which a task is compared, and what is removed from a store."""

import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.cache import store as module
from scalable.cache.store import SHARE, ResultStore, Stored, excess, path_of

SIZE = 50_000


@pytest.fixture(params=["directory", "bucket"])
def store(request, tmp_path):
    if request.param == "directory":
        return ResultStore.open(tmp_path / "results")
    return ResultStore.open(f"memory://{tmp_path.name}-{os.getpid()}")


@pytest.fixture
def put(make_key):
    def put(store, number, value=5, function="model.run", **parts):
        return store.put(make_key(number, parts or None, function), value, cost_s=0.5)

    return put


@pytest.fixture
def near(store, make_key):
    """Return a function that returns the number of the earlier result of a key with given parts."""

    def near(numbers, parts, function="model.run", before=None):
        key = make_key("asked", parts, function)
        found = store.earlier(key, before or time.time() + 1)
        keys = {make_key(number).digest: number for number in numbers}
        return None if found is None else keys[found.key]

    return near


def parts(code, year):
    return {"code:model.run": code, "argument:year": year}


def test_the_newest_result_with_equal_arguments_is_compared(store, put, near, monkeypatch):
    clock = iter(range(1, 100))
    # The clock of this module alone: other threads ask for the time, too.
    monkeypatch.setattr(
        module, "time", SimpleNamespace(**{**vars(time), "time": lambda: float(next(clock))})
    )
    put(store, 0, **parts("a", "2049"))
    put(store, 1, **parts("a", "2050"))
    put(store, 2, **parts("b", "2050"))
    put(store, 3, **parts("c", "2051"))
    put(store, 4, function="other.run", **parts("c", "2050"))
    for one in list(store.stored()):
        if isinstance(store._place, module._Directory):
            created = store.described(one).created
            os.utime(store._place.root / one.path, (created, created))
    monkeypatch.undo()
    assert near(range(5), parts("x", "2050")) == 2
    assert near(range(5), parts("x", "2052")) in ((3,) if _is_directory(store) else range(4))
    assert near(range(5), parts("x", "2050"), "nobody.run") is None
    assert near(range(5), parts("x", "2050"), before=2.5) == 1
    assert near(range(5), parts("x", "2050"), before=1.5) == 0
    assert near(range(5), parts("x", "2050"), before=0.5) is None


def _is_directory(store):
    return isinstance(store._place, module._Directory)


def test_a_result_of_the_same_key_is_no_earlier_one(store, put, near):
    put(store, "asked", **parts("a", "2050"))
    assert near(["asked"], parts("a", "2050")) is None


def test_removed_and_damaged_results_are_not_compared(tmp_path, put, make_key):
    store = ResultStore.open(tmp_path / "results")
    for number in range(3):
        put(store, number, **parts(str(number), "2050"))
    first, second, _ = sorted(store.stored(), key=lambda one: store.described(one).created)
    Path(tmp_path / "results" / second.path).write_bytes(b"torn")
    store.remove([first])
    key = make_key("asked", parts("x", "2050"))
    assert store.earlier(key, time.time() + 1).key == make_key(2).digest
    assert store.earlier(make_key(2, parts("2", "2050")), time.time() + 1) is None


def test_a_long_list_is_used_again_until_this_process_stores(tmp_path, put, make_key, monkeypatch):
    monkeypatch.setattr(module, "_LONG", 2)
    monkeypatch.setattr(module, "_AGAIN", 1e9)
    store = ResultStore.open(tmp_path / "results")
    for number in range(3):
        put(store, number, **parts("a", "2050"))
    asked = make_key("asked", parts("x", "2051"))
    assert store.earlier(asked, time.time() + 1)
    put(ResultStore(store.url), 3, **parts("a", "2051"))
    assert store.earlier(asked, time.time() + 1).key != make_key(3).digest
    put(store, 4, **parts("a", "2052"))
    assert store.earlier(asked, time.time() + 1).key == make_key(3).digest


# Removal ------------------------------------------------------------------------------------------

STORED = st.lists(
    st.builds(Stored, st.uuids().map(str), st.integers(0, 10**9), st.floats(0, 2e9)),
    unique_by=lambda one: one.path,
)


@given(STORED, st.integers(0, 10**9), st.none() | st.floats(0, 2e9))
def test_what_stays_is_within_the_limit_and_was_used_later(stored, limit, before):
    gone = excess(stored, limit, before)
    left = [one for one in stored if one not in gone]
    assert sum(one.size for one in left) <= limit
    assert before is None or all(one.used >= before for one in left)
    assert all(one.used <= other.used for one in gone for other in left)
    if gone and (before is None or gone[-1].used >= before):  # no more than needed
        assert sum(one.size for one in left) + gone[-1].size > limit
    assert excess(list(reversed(stored)), limit, before) == gone


def numbers(store, make_key, count):
    keys = {one.key for one in store.stored()}
    return [number for number in range(count) if make_key(number).digest in keys]


def aged(store, make_key, number, seconds):
    path = Path(store.url.removeprefix("file://"), path_of(make_key(number)))
    os.utime(path, (time.time() - seconds,) * 2)


def test_pruning_keeps_what_was_used_last_within_the_limit(tmp_path, put, make_key):
    store = ResultStore.open(tmp_path / "results")
    for number in range(10):
        put(store, number, bytes(SIZE))
        aged(store, make_key, number, 1000 * (10 - number))
    store.get(make_key(0))
    pruned = store.prune(limit=5 * SIZE, dry_run=True)
    assert numbers(store, make_key, 10) == list(range(10))
    assert store.prune(limit=5 * SIZE) == pruned
    assert (pruned.removed, pruned.left.entries) == (6, 4)
    assert numbers(store, make_key, 10) == [0, 7, 8, 9]
    assert store.prune(max_age_s=2500).removed == 1
    assert numbers(store, make_key, 10) == [0, 8, 9]
    assert store.prune(limit=5 * SIZE).removed == 0


def test_only_old_temporary_files_are_removed(tmp_path, put, make_key):
    store = ResultStore.open(tmp_path / "results")
    put(store, 1)
    directory = Path(tmp_path / "results" / path_of(make_key(1))).parent
    for name in (".old", ".new"):
        (directory / name).write_text("part")
    os.utime(directory / ".old", (1, 1))
    assert store.prune().leftovers == 1
    assert (directory / ".new").exists()
    assert store.get(make_key(1)).value() == 5


def test_a_store_that_was_never_used_is_not_made_by_pruning(tmp_path):
    assert ResultStore(tmp_path / "results").prune(limit=5).removed == 0
    assert not (tmp_path / "results").exists()


def test_a_process_that_stores_a_part_of_the_limit_keeps_to_it(store, put):
    store.limit = 10 * SIZE
    for number in range(30):
        put(store, number, bytes(SIZE))
        assert sum(one.size for one in store.stored()) <= 10 * SIZE
    assert len(list(store.stored())) == 9  # entries are larger than their results


@pytest.mark.parametrize("first", [0.0, 0.5])
def test_processes_that_store_little_keep_to_the_limit_together(tmp_path, put, monkeypatch, first):
    monkeypatch.setattr(module.random, "random", lambda: first)
    limit, url = int(SIZE * 1.2 / SHARE), ResultStore.open(tmp_path / "results").url
    for number in range(30):
        put(ResultStore(url), number, bytes(SIZE))
    put(ResultStore(url, limit), 30, bytes(SIZE))
    size = sum(one.size for one in ResultStore(url).stored())
    assert (size <= limit) == (first > 0)


def test_a_store_that_cannot_be_pruned_harms_no_task(tmp_path, put, make_key, monkeypatch):
    store = ResultStore(tmp_path / "results", limit=1)

    def fail(_):
        raise OSError("disk error")

    monkeypatch.setattr(store._place, "remove", fail)
    put(store, 1, bytes(SIZE))
    assert store.get(make_key(1)).value() == bytes(SIZE)


def test_a_result_that_another_process_removes_is_a_miss(tmp_path, put, make_key):
    store = ResultStore(tmp_path / "results")
    put(store, 1, bytearray(10 * SIZE))
    with store._place.opened(path_of(make_key(1))) as opened:  # its reader is not interrupted
        ResultStore(store.url).prune(limit=0)
        assert opened.source.read(SIZE * 20)
    assert store.get(make_key(1)) is None


# Other releases -----------------------------------------------------------------------------------

DIGEST = "ab" * 32


def make_other_layout(root):
    """Make the files of the layout before this one, next to files of a project."""
    for name in (
        f"entries/ab/{DIGEST}",
        "entries/ab/.abababababababab.0123456789abcdef",
        f"functions/{'0' * 32}/{'1' * 16}.lines",
        f"leases/{DIGEST}",
        "leases/.owner.0123456789abcdef",
        "entries/mine.txt",
        f"entries/ab/{DIGEST}.txt",
        "functions/model.py",
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("123")


def test_results_of_another_release_are_named_once_and_can_be_removed(tmp_path, caplog, put):
    make_other_layout(tmp_path)
    store = ResultStore(tmp_path)
    store.check()
    (record,) = caplog.records
    command = re.search("`(scalable cache prune.*)`", record.getMessage())[1]
    assert command == f"scalable cache prune --store file://{tmp_path}"
    ResultStore(tmp_path).check()
    assert put(store, 1)
    assert len(caplog.records) == 1
    assert store.remove(store.of_other_layout()) == 5
    left = [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()]
    assert sorted(name for name in left if not name.startswith("results-2")) == [
        f"entries/ab/{DIGEST}.txt", "entries/mine.txt", "functions/model.py"
    ]  # fmt: skip
    assert not (tmp_path / "leases").exists()
    assert len(list(store.stored())) == 1


def test_an_empty_directory_and_one_of_a_project_are_not_named(tmp_path, caplog):
    ResultStore(tmp_path / "results").check()
    (tmp_path / "project" / "entries" / "first").mkdir(parents=True)
    ResultStore(tmp_path / "project").check()
    assert caplog.records == []


def test_threads_share_a_store(tmp_path, at_once, put, make_key):
    store = ResultStore.open(tmp_path / "results")

    def wrong(start):
        found = []
        for number in (n % 80 for n in range(start, start + 60)):
            put(store, number, number)
            if store.get(make_key(number)).value() != number:
                found.append(number)
        return found

    assert at_once(wrong, [20 * n for n in range(4)]) == [[]] * 4
