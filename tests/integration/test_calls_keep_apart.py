"""Calls of executors keep apart: their arguments, their order, and the end of their iterators."""

import itertools
import threading
import time

import numpy as np
import pytest

from scalable import ScalableSession
from scalable.errors import ClusterError

LARGE = 200_000  # floats: more than a message may have


@pytest.fixture(scope="module", params=[True, False], ids=["processes", "threads"])
def client(request):
    with ScalableSession.local({"a": 2}, processes=request.param) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


def changed(array):
    before = float(array[0])
    try:
        array[0] = 99.0
    except ValueError as error:
        return str(error)
    return before


def appended(values):
    values.append(1.0)
    return len(values)


@pytest.mark.parametrize("verb", ["map", "starmap", "submit"])
def test_no_call_sees_what_another_has_written_into_its_argument(client, verb):
    array, values = np.zeros(LARGE), [0.0] * LARGE
    with client.pool(tag="a") as pool:
        if verb == "map":
            arrays, lists = pool.map(changed, [array] * 6), pool.map(appended, [values] * 6)
        elif verb == "starmap":
            arrays = pool.starmap(changed, [(array,)] * 6)
            lists = pool.starmap(appended, [(values,)] * 6)
        else:
            arrays = [pool.submit(changed, array).result() for _ in range(3)]
            lists = [pool.submit(appended, values).result() for _ in range(3)]
        assert set(arrays) == {"assignment destination is read-only"}
        assert set(lists) == {LARGE + 1}
    assert array[0] == 0.0
    assert len(values) == LARGE


def test_a_large_argument_is_the_same_for_its_type(client):
    data, text = b"x" * (2 * LARGE * 8), "y" * (LARGE * 8)
    with client.pool(tag="a") as pool:
        found = list(pool.map(len, [data, text, {"deep": np.ones(LARGE)}, list(range(LARGE))]))
        assert found == [len(data), len(text), 1, LARGE]
        assert pool.submit(np.sum, np.ones(LARGE)).result() == LARGE


def test_an_argument_goes_to_no_worker_of_another_pool():
    with ScalableSession.local({"small": 3, "large": 1}) as client:
        client.wait_for_workers(4, timeout=60)
        (own,) = (
            address
            for address, worker in client.scheduler_info(n_workers=-1)["workers"].items()
            if "large" in worker["resources"]
        )
        held, pool = set(), client.pool(tag="large")
        for number in range(8):  # each at random would be on the one worker in four
            future = pool.submit(np.sum, np.full(LARGE, float(number)))
            held.update(*client.who_has().values())
            assert future.result() == number * LARGE
        assert held == {own}


def test_the_end_of_a_block_does_not_wait_for_an_endless_iterator(client):
    read = itertools.count()
    with client.pool(tag="a") as pool:
        results = pool.imap(abs, read)
        assert [next(results) for _ in range(3)] == [0, 1, 2]
    more = []
    with pytest.raises(RuntimeError, match="after shutdown"):
        more.extend(results)
    assert more == list(range(3, 3 + len(more)))  # what was read has run


def test_calls_of_an_iterator_run_to_their_end_where_the_executor_is_only_closed(client):
    pool = client.pool(tag="a")
    results = pool.imap(abs, iter(range(-500, 0)))
    pool.close()
    assert list(results) == list(range(500, 0, -1))
    pool.join()


def test_results_of_an_iterator_come_in_order_when_calls_become_long(client):
    with client.pool(tag="a") as pool:
        list(pool.map(abs, range(2000)))  # very short ones
        results = pool.imap(time.sleep, itertools.repeat(0.02))
        began = time.monotonic()
        for _ in range(40):
            next(results)
        # 40 calls on two workers take 0.4 s; in the wrong order the last one takes minutes.
        assert time.monotonic() - began < 30
        pool.terminate()


def test_threads_share_the_results_of_one_iterator(client):
    found, errors = [], []

    def take(results):
        try:
            found.extend(results)
        except BaseException as error:  # noqa: BLE001 - it is looked at below
            errors.append(error)

    with client.pool(tag="a") as pool:
        results = pool.imap(abs, iter(range(2000)))
        threads = [threading.Thread(target=take, args=(results,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert (sorted(found), errors) == (list(range(2000)), [])


def test_who_waits_for_an_iterator_that_waits_is_told_of_the_end():
    waits = threading.Event()

    def late():
        yield from range(5)
        waits.wait(120)

    raised = []
    with ScalableSession.local({"a": 1}) as client:
        client.wait_for_workers(1, timeout=60)
        pool = client.pool(tag="a")
        results = pool.imap(abs, late())
        assert [next(results) for _ in range(5)] == list(range(5))

        def take():
            try:
                next(results)
            except ClusterError as error:
                raised.append(error)

        taking = threading.Thread(target=take, daemon=True)
        taking.start()
    taking.join(60)
    waits.set()
    assert len(raised) == 1
