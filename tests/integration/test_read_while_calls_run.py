"""Arguments that are read while calls run: generators, endless iterators, a bounded buffer."""

import itertools
import os
import signal
import threading
import time
from concurrent.futures import CancelledError

import pytest

from manifests import TWO_POOLS
from scalable import ClusterError, ScalableClient

MANIFEST, WORKERS = TWO_POOLS, 3


@pytest.fixture
def pool(client):
    with client.pool(tag="a") as pool:
        yield pool


@pytest.fixture
def readers(eventually):
    """Threads that read arguments; none is left at the end."""

    def reading():
        return [thread for thread in threading.enumerate() if thread.name == "scalable reader"]

    eventually(lambda: not reading(), "the end of what a file before has read")
    yield reading
    eventually(lambda: not reading(), "the end of all reading")


def double(x):
    return 2 * x


def nap(seconds):
    time.sleep(seconds)
    return seconds


def note(path, x):
    with path.open("a") as file:
        file.write(f"{x}\n")
    return x


class Counted:
    """Numbers without an end, and how many of them were read."""

    def __init__(self):
        self.read = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.read += 1
        return self.read - 1


def broken(error, after):
    yield from range(after)
    raise error


def errors_of(results):
    while True:
        try:
            next(results)
        except StopIteration:
            return
        except ClusterError as error:
            yield str(error)


# map ------------------------------------------------------------------------------------------------


def test_calls_of_map_begin_while_its_iterator_is_read(pool, tmp_path, eventually):
    path = tmp_path / "runs"

    def after_the_first_call():
        yield 1
        eventually(path.exists, "the first task")
        yield 2

    assert list(pool.map(lambda x: note(path, x), after_the_first_call())) == [1, 2]


def test_all_calls_of_map_run_though_nobody_takes_a_result(client, tmp_path):
    path = tmp_path / "runs"
    with client.pool(tag="a") as pool:
        pool.map(lambda x: note(path, x), (x for x in range(300)))
    assert sorted(map(int, path.read_text().split())) == list(range(300))


def test_map_raises_what_its_iterator_raises(pool):
    with pytest.raises(OSError, match="gone"):
        pool.map(double, broken(OSError("gone"), 20))
    assert list(pool.map(double, (x for x in range(3)))) == [0, 2, 4]


def test_a_buffer_bounds_the_calls_whose_results_were_not_taken(pool, readers, eventually):
    numbers = Counted()
    results = pool.map(double, numbers, buffersize=10)
    eventually(lambda: numbers.read >= 10)  # they begin at once
    for position in range(60):
        assert next(results) == 2 * position
        assert numbers.read <= position + 1 + 10
    eventually(
        lambda: numbers.read > 60 + 10 - 3
    )  # a quarter of the buffer is free before it reads
    del results
    eventually(lambda: not readers())


def test_a_buffer_takes_several_iterables(pool, readers):
    results = pool.map(pow, [2, 3, 4], itertools.repeat(2), buffersize=1)
    assert list(results) == [4, 9, 16]


@pytest.mark.parametrize(
    ("size", "error", "told"),
    [(0, ValueError, "None or > 0"), (-3, ValueError, "None or > 0"), (1.5, TypeError, "integer")],
)
def test_the_size_of_a_buffer_is_a_positive_integer(pool, size, error, told):
    with pytest.raises(error, match=f"buffersize must be.*{told}"):
        pool.map(double, [1], buffersize=size)


# imap -----------------------------------------------------------------------------------------------


def test_a_lost_worker_costs_an_iterator_nothing(client, tmp_path, readers):
    path, numbers = tmp_path / "runs", Counted()
    with client.pool(tag="a") as pool:
        results = pool.imap(lambda x: (note(path, x), os.getpid()), numbers)
        taken = [next(results) for _ in range(500)]
        os.kill(taken[-1][1], signal.SIGKILL)
        taken += [next(results) for _ in range(1_000)]
        deadline = time.monotonic() + 60
        while len({pid for _, pid in taken}) < 3 and time.monotonic() < deadline:
            taken.append(next(results))  # until its successor runs some
        del results
    assert [number for number, _ in taken] == list(range(len(taken)))
    assert len({pid for _, pid in taken}) == 3


@pytest.mark.parametrize("verb", ["imap", "imap_unordered"])
def test_an_error_of_the_iterator_comes_after_the_results(pool, readers, verb):
    results = getattr(pool, verb)(double, broken(OSError("gone"), 20))
    assert sorted(next(results) for _ in range(20)) == [2 * x for x in range(20)]
    with pytest.raises(OSError, match="gone"):
        next(results)
    assert list(results) == []


def test_a_consumer_that_stops_early_ends_the_reading(pool, readers, eventually):
    numbers = Counted()
    for result in pool.imap(double, numbers):
        if result == 40:
            break
    eventually(lambda: not readers())
    assert pool.submit(double, 4).result(timeout=60) == 8


def test_ctrl_c_ends_an_endless_iterator(client, readers, eventually):
    pool = client.pool(tag="a")
    results = pool.imap(nap, itertools.repeat(0.01))
    next(results)
    with pytest.raises(KeyboardInterrupt), pool:
        raise KeyboardInterrupt
    eventually(lambda: not readers())
    with pytest.raises(CancelledError):
        list(results)


def test_a_closed_client_is_no_end_of_the_iterator(client, readers):
    with ScalableClient(client.scheduler.address, security=client.security) as other:
        results = other.pool(tag="b").imap(nap, itertools.repeat(0.01))
        next(results)
    *_, last = errors_of(results)
    assert last == "not all arguments were read: the client is closed"


def test_other_calls_have_their_turns_beside_an_endless_iterator(pool, readers):
    numbers = Counted()
    results = pool.imap(nap, (0.001 for _ in numbers))
    taking = threading.Thread(target=lambda: [next(results) for _ in range(1000)], daemon=True)
    taking.start()
    assert pool.submit(double, 4).result(timeout=60) == 8
    assert taking.is_alive()
    taking.join(60)
