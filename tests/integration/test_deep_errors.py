"""Errors that cannot be pickled whole arrive, with their type and message."""

import pytest

from scalable import ScalableSession


class Stubborn(Exception):
    """An error that refuses to be pickled."""

    def __reduce__(self):
        raise TypeError("no")


def walk(depth, error=ValueError):
    if depth:
        return walk(depth - 1, error)
    raise error("deep")


def endless(number=0):
    return endless(number + 1)


async def deep_coroutine(depth):
    return walk(depth)


def with_deep_cause(depth):
    try:
        walk(depth, KeyError)
    except KeyError as error:
        raise ValueError("above") from error


def stubborn():
    raise Stubborn("no pickle")


@pytest.fixture(scope="module", params=[True, False], ids=["processes", "threads"])
def client(request):
    with ScalableSession.local({"a": 1}, processes=request.param) as client:
        yield client


WAYS = {
    "submit": lambda client, *call: client.submit(*call, tag="a").result(timeout=60),
    "executor": lambda client, *call: client.pool("a").submit(*call).result(timeout=60),
    "imap": lambda client, function, *args: list(client.pool("a").imap(function, args)),
    "kept": lambda client, *call: client.submit(*call, tag="a", errors="keep").result(timeout=60),
}


def raised(way, client, *call):
    """Return the error of a task, however the client is told."""
    try:
        return WAYS[way](client, *call).exception
    except Exception as error:  # noqa: BLE001 - it is what is looked at
        return error


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("depth", [100, 400, 900])
def test_an_error_from_deep_in_the_stack_arrives_with_both_ends(client, way, depth):
    error = raised(way, client, walk, depth)
    assert (type(error), error.args) == (ValueError, ("deep",))
    trace = error.__traceback__
    lines = set()
    while trace is not None:
        lines.add(trace.tb_lineno)
        trace = trace.tb_next
    assert {17, 18} <= lines  # where it calls itself, and where it raises


@pytest.mark.parametrize("way", ["submit", "executor", "kept"])
def test_endless_recursion_arrives(client, way):
    assert type(raised(way, client, endless)) is RecursionError


def test_deep_errors_of_coroutines_and_deep_causes_arrive(client):
    assert type(raised("submit", client, deep_coroutine, 400)) is ValueError
    for way in ("submit", "executor"):
        error = raised(way, client, with_deep_cause, 400)
        assert (type(error), type(error.__cause__)) == (ValueError, KeyError)


@pytest.mark.parametrize("way", ["submit", "executor", "kept"])
def test_an_error_that_cannot_be_pickled_arrives_with_its_words(client, way):
    assert "Stubborn" in str(raised(way, client, stubborn))
