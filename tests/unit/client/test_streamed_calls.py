"""Mapped calls: results that nobody keeps, and iterables that are read as slots need them."""

import gc
import itertools
import multiprocessing
import threading
import weakref

import pytest

from scalable.client.calls.futures import CallFuture
from scalable.client.calls.mapped_calls import MappedCalls
from scalable.client.calls.streamed_calls import StreamedCalls


class Value:
    """A result that can be referred to weakly."""


def never():
    return None


def reading(iterator, *, ordered=True):
    calls = StreamedCalls(threading.Condition(), abs, ordered=ordered)
    arguments = (iterator, tuple, lambda: 5, never)
    thread = threading.Thread(target=calls.read, args=arguments, daemon=True)
    thread.start()
    return calls, thread


def run(calls, count):
    """Settle calls as their bundles would; return how many there were."""
    done = 0
    while done < count:
        numbers = calls.take(3)
        _, (_, rows, _) = calls.calls(numbers, lambda _: 0)
        calls.settle_values(numbers, [abs(*row) for row in rows])
        done += len(numbers)
    return done


@pytest.mark.parametrize("ordered", [True, False])
def test_an_endless_iterable_is_read_as_calls_and_results_are_taken(ordered):
    read = itertools.count()
    calls, thread = reading(read, ordered=ordered)
    outcomes = calls.outcomes(never)
    done = 0
    for wanted in range(100):
        if wanted >= done:
            done += run(calls, 1)
        assert next(outcomes) == [None, wanted]
    assert next(read) < 200
    calls.cancel()
    thread.join(30)
    assert not thread.is_alive()


def test_results_that_nobody_takes_stop_the_reading(eventually):
    read = itertools.count()
    calls, _ = reading(read)
    run(calls, 20)
    with pytest.raises(AssertionError):
        eventually(lambda: len(calls), timeout=0.3)
    assert next(read) <= 21
    calls.stop_reading()


def broken():
    yield -1
    raise ValueError("no more")


def test_an_error_of_the_iterable_comes_after_the_results_before_it():
    calls, _ = reading(broken())
    outcomes = calls.outcomes(never)
    run(calls, 1)
    assert next(outcomes) == [None, 1]
    with pytest.raises(ValueError, match="no more"):
        next(outcomes)


def test_a_result_is_not_kept_after_it_was_taken():
    calls = MappedCalls(threading.Condition(), abs, [(1,), (2,)])
    calls.settle_values(calls.take(2), [Value(), Value()])
    outcomes = calls.outcomes(never)
    for _ in range(2):
        reference = weakref.ref(next(outcomes).pop())
        gc.collect()
        assert reference() is None


def test_a_late_result_is_a_timeout_of_multiprocessing_too():
    future = CallFuture(threading.Condition())
    with pytest.raises(multiprocessing.TimeoutError):
        future.get(timeout=0.01)
    with pytest.raises(TimeoutError):
        future.get(timeout=0.01)
