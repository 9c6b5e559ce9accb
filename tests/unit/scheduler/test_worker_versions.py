"""Versions of workers that connect: shared sets, and Dask's comparison with each distinct one."""

import copy

from distributed import versions
from hypothesis import given
from hypothesis import strategies as st

from scalable.dask_compat.scheduler import comparing_distinct
from scalable.scheduler.controller import WorkerVersions

COMPARE = getattr(versions.error_message, "__wrapped__", versions.error_message)
PACKAGES = st.fixed_dictionaries(
    {"dask": st.sampled_from("12"), "numpy": st.sampled_from(["1", None])},
    optional={"lz4": st.just("3")},
)
SETS = st.none() | st.builds(lambda packages: {"packages": packages}, PACKAGES)


def test_equal_sets_are_one_object_and_others_are_not():
    sets = WorkerVersions()
    first = {"packages": {"dask": "1"}}
    assert sets.shared(first) is first
    assert sets.shared(copy.deepcopy(first)) is first
    other = {"packages": {"dask": "2"}}
    assert sets.shared(other) is other


def test_workers_that_share_a_set_are_compared_once():
    seen = []

    def compare(_scheduler, workers, _source, source_name):
        seen.append((len(workers), source_name))

    one, other = {"packages": {"dask": "1"}}, {"packages": {"dask": "2"}}
    workers = {f"tcp://{i}": one if i % 2 else other for i in range(100)}
    comparing_distinct(compare)(one, workers, one, source_name="a worker")
    assert seen == [(2, "a worker")]


@given(SETS, st.lists(SETS, max_size=4), SETS)
def test_the_answer_is_that_of_dask(scheduler, theirs, source):
    workers = {f"tcp://{i}": each for i, each in enumerate(theirs)}
    found = []
    for compare in (COMPARE, comparing_distinct(COMPARE)):
        try:
            found.append(compare(scheduler, workers, source, source_name="a worker"))
        except AttributeError as error:  # Dask's own, for versions that are not told
            found.append(str(error))
    assert found[0] == found[1]
