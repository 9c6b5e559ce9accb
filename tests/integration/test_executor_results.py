"""Results of executors: gathered by the client, and errors that must not end an iterator."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from distributed import wait

from scalable import ScalableSession


def double(x):
    return 2 * x


def fail(x):
    raise LookupError(x)


def stop_at_two(x):
    if x == 2:
        raise StopIteration(x)
    return x


@pytest.fixture(scope="module")
def client():
    with ScalableSession.local({"m": 2}) as client:
        yield client


def test_gather_takes_futures_of_executors_and_of_the_client(client):
    pool = client.pool("m")
    one, two, three = (
        pool.submit(double, 1),
        client.submit(double, 2, tag="m"),
        pool.submit(double, 3),
    )
    assert client.gather(one) == 2
    assert client.gather([one, three]) == [2, 6]
    assert client.gather({"a": [one, two], "b": (three, "text"), "c": one}) == {
        "a": [2, 4],
        "b": (6, "text"),
        "c": 2,
    }


def test_gather_raises_the_error_of_an_executor_or_skips_it(client):
    pool = client.pool("m")
    futures = [pool.submit(double, 1), pool.submit(fail, 2), client.submit(double, 3, tag="m")]
    with pytest.raises(LookupError, match="2"):
        client.gather(futures)
    assert client.gather(futures, errors="skip") == [2, 6]
    assert client.gather(futures, "skip") == [2, 6]


def test_gather_skips_what_is_lost_while_its_session_closes(eventually):
    session = ScalableSession.local({"m": 1, "none": 0})
    client = session.start()
    done, waiting = client.submit(double, 1, tag="m"), client.submit(double, 2, tag="none")
    wait([done])
    with ThreadPoolExecutor() as threads:
        asked = [
            threads.submit(client.gather, futures, errors="skip")
            for futures in ([waiting], [done, waiting])
        ]
        event = client.futures[waiting.key]._get_event()
        eventually(lambda: len(event._waiters) == 2)
        session.close()
        assert [each.result(60) for each in asked] == [[], []]


def total(*parts, **named):
    """Add all numbers in nested containers, and the lengths of all texts."""
    if named:
        return total(*parts, *named.values())
    (parts,) = parts if len(parts) == 1 else (list(parts),)
    if isinstance(parts, bytes):
        return len(parts)
    if isinstance(parts, int):
        return parts
    return sum(total(each) for each in (parts.values() if isinstance(parts, dict) else parts))


def test_futures_of_executors_are_taken_in_containers(client):
    pool, other = client.pool("m"), client.pool("m")
    one, large = pool.submit(double, 1), pool.submit(bytes, 3_000_000)
    for executor in (pool, other):
        assert executor.submit(total, [one, pool.submit(double, 2)]).result(60) == 6
        nested = {"a": (one, [pool.submit(double, 3)]), "b": {one}, "c": 5}
        assert executor.submit(total, nested, more=[one, one]).result(60) == 2 + 6 + 2 + 5 + 4
        assert executor.submit(total, [large, one]).result(60) == 3_000_002
        assert executor.submit(total, [bytes(2_000_000), large, one]).result(60) == 5_000_002
    waits = [pool.submit(double, each) for each in range(2_000)]
    assert pool.submit(total, waits).result(60) == 1_999 * 2_000


def test_the_error_of_a_future_in_a_container_is_the_error_of_the_task(client):
    pool = client.pool("m")
    with pytest.raises(LookupError, match="7"):
        pool.submit(total, {"a": [pool.submit(fail, 7)]}).result(60)


@pytest.mark.parametrize("verb", ["imap", "imap_unordered", "map"])
@pytest.mark.parametrize("kind", [list, iter], ids=["list", "iterator"])
def test_a_task_that_raises_stop_iteration_is_an_error(client, verb, kind):
    results = getattr(client.pool("m"), verb)(stop_at_two, kind(range(5)))
    found = set()
    with pytest.raises(RuntimeError, match="StopIteration"):
        found.update(results)
    if verb != "map":  # the iterator goes on
        found.update(results)
        assert found == {0, 1, 3, 4}
