"""Which workers get a large argument: those of its pool with the most free memory."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.scheduler.bundle_relay import COMPARED, NAMED, upload_places

GB = 1_000_000_000


def worker(address, tag="a", *, limit=GB, nbytes=0, used=0):
    return SimpleNamespace(
        address=address, resources={tag: 1}, memory_limit=limit, nbytes=nbytes,
        metrics={"memory": used},
    )  # fmt: skip


def places(workers, tag, nbytes=1_000_000):
    return upload_places(SimpleNamespace(running=workers), tag, nbytes)


@given(st.lists(st.sampled_from("abc"), max_size=60), st.sampled_from(["", "a", "b", "d"]))
def test_workers_are_those_of_the_pool_if_it_has_any(tags, tag):
    workers = [worker(str(number), own) for number, own in enumerate(tags)]
    found = places(workers, tag)
    of_pool = {w.address for w in workers if tag in w.resources} if tag else set()
    allowed = of_pool or {w.address for w in workers}
    assert set(found) <= allowed
    assert len(found) == min(NAMED, len(allowed))


def test_a_worker_has_room_by_what_it_uses_or_keeps():
    full = [worker("full", used=GB), worker("keeps", nbytes=GB), worker("little", limit=GB // 10)]
    free = [worker("free"), worker("large", limit=4 * GB, used=GB), worker("any", limit=None)]
    for _ in range(20):
        assert set(places(full + free, "a", 300_000_000)) == {"free", "large", "any"}
    assert places([*full, worker("half", used=GB // 2)], "a", 300_000_000)[0] == "half"


@pytest.mark.parametrize("limit", [None, GB])
@pytest.mark.parametrize("count", [4, 10, 3 * COMPARED])
def test_arguments_spread_over_equal_workers(limit, count):
    workers = [worker(str(number), limit=limit, used=150_000_000) for number in range(count)]
    first = {places(workers, "a")[0] for _ in range(40 * count)}
    assert len(first) == count
