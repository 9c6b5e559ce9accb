"""Which workers get a large argument: those of its pool with the most free memory."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from scalable.scheduler.upload_places import COMPARED, NAMED, upload_places

GB = 1_000_000_000


def worker(address, tag="a", *, limit=GB, nbytes=0, used=0):
    return SimpleNamespace(
        address=address, resources={tag: 1}, memory_limit=limit, nbytes=nbytes,
        metrics={"memory": used},
    )  # fmt: skip


def places(workers, tag):
    return upload_places(SimpleNamespace(running=workers), tag)


@given(st.lists(st.sampled_from("abc"), max_size=60), st.sampled_from(["", "a", "b", "d"]))
def test_workers_are_those_of_the_pool_if_it_has_any(tags, tag):
    workers = [worker(str(number), own) for number, own in enumerate(tags)]
    found = places(workers, tag)
    of_pool = {w.address for w in workers if tag in w.resources} if tag else set()
    allowed = of_pool or {w.address for w in workers}
    assert set(found) <= allowed
    assert len(found) == min(NAMED, len(allowed))


def test_the_emptiest_are_taken_by_what_they_use_or_keep():
    workers = [
        worker("full", used=GB), worker("keeps", nbytes=GB), worker("half", used=GB // 2),
        worker("small", limit=GB // 4), worker("large", limit=4 * GB, used=GB),
        worker("without a limit", limit=None),
    ]  # fmt: skip
    assert places(workers, "a") == ["without a limit", "large", "half"]


def test_of_many_workers_some_are_compared():
    workers = [worker(str(number), used=number) for number in range(100 * COMPARED)]
    assert len({tuple(places(workers, "a")) for _ in range(20)}) > 1
