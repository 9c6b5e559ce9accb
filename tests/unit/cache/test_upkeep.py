"""Collections of garbage that processes which store results do by themselves."""

import pickle
import threading
import time
from hashlib import sha256

import pytest

from scalable.cache import upkeep
from scalable.cache.store import ResultStore

SIZE = 50_000
LIMIT = 10 * SIZE


def put(store, number):
    key = sha256(str(number).encode()).hexdigest()
    store.put(key, b"x" * SIZE, parts={"x": str(number)}, function="f", cost_s=1.0)
    for thread in threading.enumerate():
        if thread.name == "scalable-upkeep":
            thread.join()


@pytest.fixture
def path(tmp_path):
    """Return the path of a store with twice as much as its limit, of which nobody took care."""
    store = ResultStore(tmp_path / "results")
    for number in range(20):
        put(store, number)
    return tmp_path / "results"


def number_of(path):
    return ResultStore(path).usage().entries


def test_a_process_that_stores_a_result_reduces_a_store_that_is_too_large(path):
    put(ResultStore(path, LIMIT), 20)
    assert number_of(path) == 8  # 90 % of the limit, for entries that are larger than results
    assert ResultStore(path).usage().size <= upkeep.REDUCED * LIMIT


def test_a_store_within_its_limit_keeps_all_results(path):
    put(ResultStore(path, 30 * SIZE), 20)
    assert number_of(path) == 21


def test_a_store_without_a_limit_keeps_all_results(path):
    put(ResultStore(path), 20)
    assert number_of(path) == 21
    assert not (path / "collected").exists()


def test_all_processes_together_collect_once_in_an_interval(path):
    put(ResultStore(path, LIMIT), 20)
    for number in range(30, 40):  # each store object stands for a process of its own
        put(ResultStore(path, LIMIT), number)
    assert number_of(path) == 18
    hour_ago = time.time() - upkeep.INTERVAL_S - 10
    (path / "collected").write_text(repr(hour_ago))
    put(ResultStore(path, LIMIT), 40)
    assert number_of(path) == 8


@pytest.mark.parametrize("note", ["", "soon", "1e12"])
def test_a_note_that_says_nothing_does_not_keep_processes_from_collecting(path, note):
    (path / "collected").write_text(note)
    put(ResultStore(path, LIMIT), 20)
    assert number_of(path) == 8


def test_nobody_collects_beside_a_process_that_collects(path):
    with ResultStore(path).lease(upkeep.LEASE, "other"):
        put(ResultStore(path, LIMIT), 20)
    assert number_of(path) == 21


def test_a_store_that_cannot_be_changed_harms_no_call(path, monkeypatch, caplog):
    store = ResultStore(path, LIMIT)

    def fail(*_):
        raise OSError("disk error")

    monkeypatch.setattr(store._place, "write_note", fail)
    with caplog.at_level("DEBUG", "scalable.cache"):
        put(store, 20)
    assert number_of(path) == 21
    assert "could not collect garbage in the results store: disk error" in caplog.text


def test_the_limit_goes_with_the_store_to_other_processes(path):
    data = pickle.dumps(ResultStore(path, LIMIT))
    assert pickle.loads(data).limit == LIMIT
    assert pickle.loads(pickle.dumps(ResultStore(path))).limit == LIMIT
