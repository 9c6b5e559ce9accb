"""What remembered calls tell of their outcomes, and the reasons of misses."""

import time
from functools import partial

from scalable.cache import calls
from scalable.cache.calls import NOT_COMPARED, CachedFunction, Misses, cached, heard_by
from scalable.cache.key import CallKey, KeyMaker
from scalable.model.cache_outcomes import OutcomeKind


def fit(x, factor=2):
    return x * factor


def fail(x):
    raise OSError("no data")


def remembered(store, function, *args):
    """Return a call as a client sends it."""
    key = KeyMaker().key(function, args, {})
    return partial(CachedFunction(function, store, key), *args)


def outcomes_of(*calls):
    heard = []
    with heard_by(heard.append):
        for call in calls:
            try:
                call()
            except OSError:
                heard.append("failed")
    return heard


def test_a_result_for_the_same_argument_is_the_nearest(store):
    key = KeyMaker().key(fit, (1,), {})
    old = {name: "old" if name.startswith("code:") else text for name, text in key.parts.items()}
    # An earlier version of the code with the same argument, then this version.
    for digest, parts in (("1" * 64, old), ("2" * 64, {**key.parts, "argument:x": "another"})):
        store.put(CallKey(digest, parts, key.function), 0, cost_s=1.0)
    told = Misses(store).outcome(key, time.time() + 1, 1.0)
    assert told.nearest == "1" * 64
    assert told.reason == f"the function {key.function} changed"


def test_a_damaged_result_is_the_reason_of_a_miss(store, tmp_path):
    outcomes_of(remembered(store, fit, 3))
    key = KeyMaker().key(fit, (3,), {})
    (path,) = (tmp_path / "results").rglob(f"*-{key.digest}")
    data = path.read_bytes()
    path.write_bytes(data[:-3])
    (told,) = outcomes_of(remembered(store, fit, 3))
    assert told.reason.startswith("the stored result ")
    assert told.kind is OutcomeKind.MISSED


def test_a_failing_call_is_a_miss(store):
    told, failed = outcomes_of(remembered(store, fail, 3))
    assert (told.kind, failed) == (OutcomeKind.MISSED, "failed")


def test_calls_within_a_call_are_not_told(store, tmp_path):
    inner = cached(store=tmp_path / "inner")(fit)

    def outer(x):
        return inner(x)

    assert [told.key for told in outcomes_of(partial(outer, 1))] == []
    call = remembered(store, fit, 5)
    heard = outcomes_of(remembered(store, call_it, call.func.key.digest))
    assert len(heard) == 1


def call_it(digest):
    return digest


def test_many_misses_of_short_calls_are_not_all_compared(store, monkeypatch):
    finds = Misses(store)
    compared = []
    monkeypatch.setattr(store, "earlier", lambda *_: compared.append(time.sleep(0.001)))
    keys = [KeyMaker().key(fit, (x,), {}) for x in range(200)]
    short = [finds.outcome(key, time.time(), 0.0001) for key in keys]
    assert calls.ALWAYS <= len(compared) < calls.ALWAYS + 10
    assert sum(told.reason == NOT_COMPARED for told in short) == 200 - len(compared)
    assert all(told.kind is OutcomeKind.MISSED for told in short)
    compared.clear()
    for key in keys:  # calls that take long are all compared
        finds.outcome(key, time.time(), 60.0)
    assert len(compared) == 200
