"""Failures as values, and errors that say which call has raised them."""

import json
import os
import pickle
import signal

import pytest
from distributed import as_completed
from distributed.scheduler import KilledWorker

from scalable import CallFailed, ClusterError

MANIFEST = """\
version: 1
project: {name: kept}
targets:
  local: {provider: local, processes: true}
components:
  a: {cpus: 1, workers: 1}
  b: {cpus: 1, workers: 1}
tasks:
  fit: {component: a}
  again: {component: a, retries: 2}
"""
WORKERS = 2


class Unlike(Exception):
    """An error whose arguments are not those of its constructor."""

    def __init__(self, year, region):
        super().__init__(f"no {year} in {region}")
        self.year = year

    def __reduce__(self):
        return Unlike, (self.year, "south")


def fit(year, *, region="north"):
    if year % 7 == 3:
        raise LookupError(year, region)
    return year


def double(x):
    return 2 * x


def unlike(year):
    raise Unlike(year, "south")


def die_of(cause):
    os.kill(os.getpid(), signal.SIGKILL)


def parse(text, errors="strict"):
    return text, errors


def test_failures_stand_among_the_results(client):
    futures = client.map(fit, range(20), task="fit", region="south", errors="keep")
    results = client.gather(futures)
    failed = [result for result in results if isinstance(result, CallFailed)]
    assert len(failed) == 3
    assert [result for result in results if result or result == 0] == [
        year for year in range(20) if year % 7 != 3
    ]
    first = failed[0]
    assert not first
    assert (first.task, first.tag, first.tries) == ("fit", "a", 1)
    assert first.arguments == "(3, region='south')"
    assert first.worker.startswith("a-")
    assert type(first.exception) is LookupError
    assert first.exception.args == (3, "south")
    assert "raise LookupError(year, region)" in first.traceback
    assert repr(first).startswith("<CallFailed fit(3, region='south') on worker a-")
    assert futures[3].result() == first
    assert isinstance(futures[3].exception(), LookupError)


def test_a_failure_says_how_often_it_was_tried(client):
    failed = client.submit(fit, 3, task="again", errors="keep").result(30)
    assert (failed.task, failed.tries) == ("again", 3)
    assert "in 3 attempts" in repr(failed)


def test_results_keep_their_places_in_nested_lists(client):
    one, three = client.starmap(fit, [(1,), (3,)], task="fit", errors="keep")
    found = client.gather({"a": [one, 5], "b": three})
    assert found["a"] == [1, 5]
    assert isinstance(found["b"], CallFailed)


def test_a_call_that_needs_a_failed_result_fails_too(client):
    three = client.submit(fit, 3, task="fit", errors="keep")
    needing = client.submit(double, three, tag="a", errors="keep").result(30)
    assert (needing.task, needing.tries, needing.worker) == ("double", 0, None)
    assert isinstance(needing.exception, LookupError)
    cause = needing.cause
    assert (cause.task, cause.arguments, cause.cause) == ("fit", "(3)", None)
    assert cause.worker.startswith("a-")
    assert repr(needing).startswith("<CallFailed double, because fit(3) on worker a-")
    row = needing.to_dict()
    assert (row["task"], row["cause"]["arguments"]) == ("double", "(3)")
    assert json.loads(json.dumps(row))["error"] == "LookupError: (3, 'north')"
    last = client.submit(double, client.submit(double, three, tag="a"), tag="b", errors="keep")
    assert last.result(30).cause == cause
    with pytest.raises(LookupError):
        client.submit(double, three, tag="a").result(30)


def test_as_completed_takes_futures_that_keep_failures(client):
    futures = client.map(fit, [1, 3], task="fit", errors="keep")
    results = [future.result() for future in as_completed(futures)]
    assert sorted(type(result).__name__ for result in results) == ["CallFailed", "int"]


@pytest.mark.parametrize("errors", ["ignore", "", None])
def test_another_word_is_an_error(client, errors):
    with pytest.raises(ClusterError, match="errors must be 'raise' or 'keep'"):
        client.map(fit, [1], task="fit", errors=errors)


def test_a_parameter_of_the_function_is_not_hidden(client):
    with pytest.raises(TypeError, match=r"functools\.partial\(parse, errors="):
        client.submit(parse, "a", errors="replace", tag="a")


def test_an_error_names_call_arguments_and_worker(client):
    with pytest.raises(LookupError) as caught:
        client.submit(fit, 3, region="east", task="fit").result(30)
    assert caught.value.args == (3, "east")
    (note,) = caught.value.__notes__
    assert note.startswith("task fit(3, region='east') on worker a-")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.args, again.__notes__) == (LookupError, (3, "east"), [note])


def test_an_error_with_its_own_pickling_keeps_the_note(client):
    with pytest.raises(Unlike, match="no 3 in south") as caught:
        client.submit(unlike, 3, task="fit").result(30)
    assert caught.value.__notes__[0].startswith("task unlike(3) on worker a-")


def test_an_error_of_an_executor_names_its_call(client):
    pool = client.pool("a")
    with pytest.raises(LookupError) as caught:
        list(pool.map(fit, [1, 3, 5]))
    assert caught.value.__notes__[0].startswith("task fit(3) on worker a-")


def test_calls_whose_workers_were_lost_are_values_and_name_their_arguments(client):
    calls = (
        client.pool("b").submit(die_of, "hunger"),
        client.submit(die_of, "age", task="fit", errors="keep"),
    )
    with pytest.raises(KilledWorker) as caught:
        calls[0].result(120)
    assert caught.value.__notes__ == ["task die_of('hunger')"]
    failed = calls[1].result(120)
    assert (failed.task, type(failed.exception).__name__) == ("fit", "LostWorkers")


def test_an_error_of_a_remembered_call_names_the_function_of_the_user(client):
    failed = client.submit(fit, 3, task="fit", cache=True, errors="keep").result(30)
    (mapped,) = client.gather(client.map(fit, [3], task="fit", cache=True, errors="keep"))
    with pytest.raises(LookupError) as caught:
        client.pool("a", cache=True).submit(fit, 3).result(30)
    for error in (failed.exception, mapped.exception, caught.value):
        assert error.__notes__[0].startswith("task fit(3) on worker a-")
    assert failed.arguments == mapped.arguments == "(3)"


def test_an_error_of_a_nested_call_names_both(client):
    def outer(year):
        from distributed import get_client

        return get_client().submit(fit, year, tag="a").result()

    with pytest.raises(LookupError) as caught:
        client.submit(outer, 3, task="fit").result(30)
    inner, whole = caught.value.__notes__
    assert inner.startswith("task fit(3)")
    assert whole.startswith("task outer(3)")
