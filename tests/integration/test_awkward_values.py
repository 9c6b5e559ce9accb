"""Errors, strings and lists that are hard to send arrive, or are refused at once."""

import logging
import os

import pytest

from scalable import ClusterError, ScalableSession


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


in_processes = pytest.mark.parametrize("client", [True], ids=["processes"], indirect=True)
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
@pytest.mark.parametrize("depth", [100, 900])
def test_an_error_from_deep_in_the_stack_arrives_with_both_ends(client, way, depth):
    error = raised(way, client, walk, depth)
    assert (type(error), error.args) == (ValueError, ("deep",))
    trace = error.__traceback__
    lines = set()
    while trace is not None:
        lines.add(trace.tb_lineno)
        trace = trace.tb_next
    assert {20, 21} <= lines  # where it calls itself, and where it raises


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


# Strings that are not UTF-8 -----------------------------------------------------------------------

LONE = "caf\udce9"  # as os.listdir returns a name in another encoding


def fail_with(text):
    raise ValueError(text)


def show(text):
    print(text)
    return text


@pytest.mark.parametrize("way", ["submit", "executor", "kept"])
def test_strings_with_lone_surrogates_are_arguments_and_messages(client, way):
    error = raised(way, client, fail_with, LONE)
    assert (type(error), error.args) == (ValueError, (LONE,))
    assert client.submit(str, LONE, tag="a").result(timeout=60) == LONE


@in_processes  # whose output is a file: threads print to the user's own, which may refuse
def test_output_with_lone_surrogates_is_streamed_escaped(client, capsys):
    pool = client.pool("a", stream_output=True)
    assert pool.submit(show, LONE).result(timeout=60) == LONE
    assert pool.submit(show, "next").result(timeout=60) == "next"
    assert r"caf\udce9" in capsys.readouterr().out


def test_keys_with_lone_surrogates_are_refused_and_nothing_else_is_lost(client):
    kept = client.submit(abs, -1, tag="a")
    for refused in (
        lambda: client.submit(abs, -1, tag="a", key=LONE),
        lambda: client.map(abs, [-1], tag="a", key=[LONE]),
        lambda: client.get({LONE: (abs, -1)}, LONE, tag="a"),
        lambda: client.get({("x", LONE): (abs, -1), "y": (abs, ("x", LONE))}, "y", tag="a"),
    ):
        with pytest.raises(ClusterError, match="UTF-8"):
            refused()
    assert kept.result(timeout=60) == 1


def test_lists_within_themselves_are_refused(client):
    inner = [1]
    inner.append(inner)
    for graph, keys in [({"x": (len, inner)}, "x"), ({"x": inner}, "x"), ({"x": 1}, inner)]:
        with pytest.raises(ClusterError, match="contains itself"):
            client.get(graph, keys, tag="a")
    shared = [1, 2]
    assert client.get({"x": (len, [shared, shared])}, "x", tag="a") == 2


# Whatever is raised while a value is unpickled ------------------------------------------------------


ENDS = [KeyboardInterrupt, GeneratorExit]


def explode(pid, kind):
    if os.getpid() != pid:
        raise kind("boom")
    return "the worker itself loads it"


class Mine:
    """A value that only the process that made it can load."""

    def __init__(self, kind, size=0):
        self.kind, self.padding = kind, bytes(size)

    def __reduce__(self):
        return explode, (os.getpid(), self.kind)


class MineError(Exception):
    def __reduce__(self):
        return explode_or_fail, (os.getpid(),)


def explode_or_fail(pid):
    explode(pid, SystemExit)
    return MineError()


def fail_with_mine():
    raise MineError


def made(kind, size=0):
    return [Mine(kind, size), bytes(size)]


@in_processes
@pytest.mark.parametrize("kind", ENDS)
def test_an_exit_while_a_result_is_loaded_is_its_error_alone(client, kind):
    pool = client.pool(tag="a")
    for bad in (client.submit(made, kind, tag="a"), client.submit(made, kind, 3_000_000, tag="a")):
        with pytest.raises(RuntimeError, match="unpickling it raised .*boom"):
            bad.result(timeout=60)
        with pytest.raises(RuntimeError, match="unpickling it raised .*boom"):
            client.gather([bad, client.submit(abs, 1, tag="a")])
        assert client.submit(abs, -2, tag="a").result(timeout=60) == 2
    with pytest.raises(RuntimeError, match="unpickling it raised .*boom"):
        pool.submit(made, kind).result(timeout=60)
    assert pool.submit(abs, -2).result(timeout=60) == 2


@in_processes
@pytest.mark.parametrize("kind", [ValueError, TypeError])
def test_error_while_a_result_is_loaded_is_raised_alone(client, kind, caplog):
    protocol = logging.getLogger("distributed.protocol.core")
    protocol.addHandler(caplog.handler)
    bad = [client.submit(made, kind, size, tag="a", pure=False) for size in (0, 3_000_000)]
    bad.append(client.pool(tag="a").submit(made, kind))
    try:
        for future in bad:
            with pytest.raises(kind, match="boom"):
                future.result(timeout=60)
        with pytest.raises(kind, match="boom"):
            client.gather([bad[0], client.submit(abs, 1, tag="a")])
    finally:
        protocol.removeHandler(caplog.handler)
    assert [each for each in caplog.records if each.name == protocol.name] == []
    assert client.submit(abs, -2, tag="a").result(timeout=60) == 2


@in_processes
def test_an_exit_while_an_error_is_loaded_is_the_error(client):
    pool = client.pool(tag="a")
    for failed in (client.submit(fail_with_mine, tag="a"), pool.submit(fail_with_mine)):
        with pytest.raises(RuntimeError, match="MineError|unpickling it raised .*boom"):
            failed.result(timeout=60)
        assert client.submit(abs, -2, tag="a").result(timeout=60) == 2
