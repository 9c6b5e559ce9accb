"""A scheduler's workers can be iterated over fast, and are the same as in Dask's dictionary."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from sortedcontainers import SortedDict

from scalable.dask_compat.scheduler import (
    iterate_fast,
    workers_by_what_they_told,
)

changes = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=30)


@given(changes, changes)
def test_values_and_pairs_are_those_of_a_sorted_dictionary(before, after):
    plain = SortedDict()
    scheduler = SimpleNamespace(workers=SortedDict())

    def change(steps):
        for comes, number in steps:
            for workers in (plain, scheduler.workers):
                if comes:
                    workers[f"tls://{number}"] = number
                else:
                    workers.pop(f"tls://{number}", None)

    change(before)
    iterate_fast(scheduler)
    change(after)
    found = scheduler.workers
    assert list(found) == list(plain)
    assert sorted(found.values()) == sorted(plain.values())
    assert dict(found.items()) == dict(plain.items())
    for position in range(len(plain)):
        assert found.values()[position] == plain.values()[position]
        assert found.items()[position] == plain.items()[position]
    assert len(found.values()) == len(found.items()) == len(plain)


def test_a_dictionary_of_another_kind_stays():
    workers = {"tls://1": 1}
    scheduler = SimpleNamespace(workers=workers)
    iterate_fast(scheduler)
    assert scheduler.workers is workers


def test_each_worker_comes_with_what_it_told():
    workers = {"a": SimpleNamespace(extra={"manager": "m"}), "b": SimpleNamespace(extra={})}
    told = workers_by_what_they_told(SimpleNamespace(workers=workers), "manager")
    assert told == [(workers["a"], "m"), (workers["b"], None)]
