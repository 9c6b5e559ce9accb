"""A bundle's calls, run without a cluster: what stays in memory, and what fails alone."""

import gc
import threading
import weakref

import pytest

from scalable.model.cache_outcomes import CacheOutcome, OutcomeKind
from scalable.protocol.lending import CallInterrupted
from scalable.protocol.messages import dump_calls, dump_function, load, load_calls
from scalable.protocol.operations import ERROR, OUTCOMES
from scalable.worker import bundles
from scalable.worker.bundles import BundleRun


class Argument:
    """An argument that can be watched, because it is made here."""

    def __init__(self):
        MADE.add(self)

    def __reduce__(self):
        return Argument, ()


class NoHash(type):
    """Class of classes that compare by name, and so have no hash."""

    def __eq__(cls, other):
        return cls.__name__ == getattr(other, "__name__", None)

    __hash__ = None


class Unhashable(metaclass=NoHash):
    """A result whose class cannot be hashed."""


def fail(argument):
    raise ValueError(repr(argument))


def be_interrupted(argument):
    RUNS[0].skip({0})
    raise CallInterrupted


def unhashable(argument):
    return Unhashable()


class Loop:
    def add_callback(self, function, *arguments):
        if arguments and isinstance(arguments[-1], dict):
            SENT.append(arguments[-1])

    def call_later(self, *_):
        pass


class Worker:
    name, loop = "w", Loop()


SENT, RUNS, MADE = [], [], weakref.WeakSet()


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(bundles, "timings_of", lambda worker, key: [])
    SENT.clear()
    RUNS.clear()


def bundle_of(function, rows, **header):
    payload, _ = dump_calls((None, rows, None))
    about = {
        "key": "k", "client": "c", "code": "", "functions": [dump_function(function)],
        "timeout_s": None, "profile": True, "record": False, "process": "", "group": "g",
        "ids": range(len(rows)),
    }  # fmt: skip
    run = BundleRun(Worker(), about | header, load_calls(payload, {}), {})
    RUNS.append(run)
    return run


def outcomes():
    told = [load(message["outcomes"]) for message in SENT if message["op"] == OUTCOMES]
    return {
        n: (kinds.get(n), value)
        for ns, vs, kinds, _ in told
        for n, value in zip(ns, vs, strict=True)
    }


@pytest.mark.parametrize("function", [fail, be_interrupted])
def test_the_arguments_of_a_call_that_did_not_succeed_are_freed_at_once(function):
    gc.collect()
    gc.disable()
    try:
        bundle_of(function, [[Argument()]]).run()
        assert not list(MADE)
    finally:
        gc.enable()


def test_a_result_whose_class_has_no_hash_concerns_its_own_call_alone():
    bundle_of(unhashable, [[1]]).run()
    assert set(outcomes()) == {0}
    rows = [[1], [2]]
    bundle_of(fail, rows).run()
    assert {number: kind for number, (kind, _) in outcomes().items()} == {0: ERROR, 1: ERROR}


def test_a_found_call_is_known_to_be_found_before_others_see_its_end(monkeypatch):
    """The event loop may take the outcomes at any moment after one was noted."""
    run = bundle_of(abs, [[-1]])

    class Watched(list):
        def append(self, number):
            super().append(number)
            run._take()

    run._unsent.numbers = Watched()
    run._counts.heard = CacheOutcome(OutcomeKind.FOUND)
    run.run()
    assert run._counts.found == {0}
    assert run._counts.durations == []


def test_calls_that_are_taken_back_do_not_run_and_the_others_run_once():
    run = bundle_of(abs, [[-n] for n in range(20_000)])
    returned = []
    taker = threading.Timer(0.002, lambda: returned.extend(run._take_waiting()))
    taker.start()
    run.run()
    taker.join()
    found = outcomes()
    assert sorted([*found, *returned]) == list(range(20_000))
    assert all(value == number for number, (_, value) in found.items())
