"""Results of executors: gathered by the client, and errors that must not end an iterator."""

import pytest

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
