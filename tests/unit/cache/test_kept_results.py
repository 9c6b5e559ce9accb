"""Results of a run that are kept for the runs that resume it, without a cluster."""

import errno
import os
import threading
import time

import pytest

from scalable.cache.calls import Purpose, heard_by
from scalable.cache.key import CallKey
from scalable.cache.resume import NOT_KEPT, ResumableFunction, RunResults, remove_expired

KEY = CallKey("ab" * 32, {"code:m.f": "1", "argument:x": "2"}, "m.f")


@pytest.fixture
def run(tmp_path):
    """Make the results of a run, which may resume another."""

    def make(name, resumed=None, **options):
        (tmp_path / name).mkdir(exist_ok=True)
        earlier = None if resumed is None else str(tmp_path / resumed)
        return RunResults(str(tmp_path / name), earlier, **options)

    return make


def keep(results, *kept):
    for value in kept:
        assert results.keep(KEY, value, 0.0, Purpose())


def values(results, times=1):
    found = [results.take(KEY, None) for _ in range(times)]
    return [None if one is None else one.value() for one in found]


def entry_of(path):
    (entry,) = (one for one in path.rglob("*") if KEY.digest in one.name)
    return entry


# Numbered results --------------------------------------------------------------------------------


def test_each_of_several_equal_tasks_takes_a_result_of_its_own(run):
    keep(run("a"), "one", "two", "three")
    assert values(run("b", "a"), 4) == ["one", "two", "three", None]
    # Another process that resumes the same run within the same run takes none a second time.
    assert values(run("b", "a"), 1) == [None]


def test_a_result_that_answers_is_kept_by_the_new_run_when_the_old_one_is_gone(run, tmp_path):
    keep(run("a"), [1, 2])
    assert values(run("b", "a")) == [[1, 2]]
    (tmp_path / "a").rename(tmp_path / "removed")
    assert values(run("c", "b")) == [[1, 2]]


def test_a_result_that_ran_is_numbered_after_those_that_were_answered(run):
    keep(run("a"), "one")
    second = run("b", "a")
    assert values(second, 2) == ["one", None]
    keep(second, "two")
    assert values(run("c", "b"), 3) == ["one", "two", None]


def test_without_a_resumed_run_nothing_is_found_even_if_an_equal_task_ran_in_this_one(run):
    results = run("a")
    keep(results, "one")
    assert values(results) == [None]


def test_on_another_file_system_results_are_copied(run, tmp_path, monkeypatch):
    keep(run("a"), list(range(1000)))
    link = os.link

    def across(source, target, **options):
        if "/a/" in str(source) and "/b/" in str(target):
            raise OSError(errno.EXDEV, "another file system")
        link(source, target, **options)

    monkeypatch.setattr(os, "link", across)
    second = run("b", "a")
    assert values(second, 2) == [list(range(1000)), None]
    assert entry_of(tmp_path / "b").stat().st_nlink == 1


def test_a_damaged_result_answers_nothing_and_is_not_kept(run, tmp_path):
    keep(run("a"), "one")
    entry = entry_of(tmp_path / "a")
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(data)
    second = run("b", "a")
    assert values(second) == [None]
    keep(second, "again")
    assert values(run("c", "b")) == ["again"]


def test_many_threads_take_each_result_once(run, at_once):
    keep(run("a"), *range(40))
    second = run("b", "a")
    taken = at_once(lambda _: [second.take(KEY, None).value() for _ in range(10)], range(4))
    assert sorted(number for part in taken for number in part) == list(range(40))


def test_results_of_runs_that_ended_long_ago_are_removed(run, tmp_path):
    for name in ("run-old", "run-resumed", "run-new"):
        keep(run(name), 1)
        long_ago = time.time() - (1000 if name != "run-new" else 0)
        for path in (tmp_path / name).rglob("*"):
            os.utime(path, (long_ago, long_ago))
    assert remove_expired(tmp_path, 500, except_for=tmp_path / "run-resumed") == 1
    left = sorted(path.parent.name for path in tmp_path.glob("*/results"))
    assert left == ["run-new", "run-resumed"]
    assert not list((tmp_path / "run-old").iterdir())


# Functions ---------------------------------------------------------------------------------------

CODE = {"code:count": "1"}


def test_a_function_runs_once_for_each_task_of_a_resumed_run(run):
    ran, heard = [], []

    def count(x):
        ran.append(x)
        return x

    first = ResumableFunction(count, run("a"), CODE, purpose=Purpose("task", "tag"))
    with heard_by(heard.append):
        assert [first(1), first(2), first(1)] == [1, 2, 1]
    assert not heard  # a run that resumes none looks for no results
    second = ResumableFunction(count, run("b", "a"), CODE, purpose=Purpose("task", "tag"))
    with heard_by(heard.append):
        assert [second(2), second(1), second(3), second(1)] == [2, 1, 3, 1]
    assert ran == [1, 2, 1, 3]
    assert [outcome.kind for outcome in heard] == ["found", "found", "missed", "found"]
    assert {outcome.resumed for outcome in heard} == {"a"}
    assert heard[2].reason == "argument x changed"


def double(x):
    return 2 * x


@pytest.mark.parametrize(
    ("options", "function", "expected"),
    [
        ({}, double, "missed"),
        ({"despite_code": True}, double, "found"),
        ({"despite_code": True}, lambda x: 2 * x, "missed"),  # others may have the same name
    ],
)
def test_results_of_changed_code_are_taken_only_if_asked(run, options, function, expected):
    there = {"environment:N": "1"}
    assert ResumableFunction(function, run("a"), {"code:f": "1"}, there)(2) == 4
    heard = []
    with heard_by(heard.append):
        results = run("b", "a", **options)
        assert ResumableFunction(function, results, {"code:f": "2"}, there)(2) == 4
        # Another environment may give another result.
        elsewhere = {"environment:N": "2"}
        assert ResumableFunction(function, results, {"code:f": "2"}, elsewhere)(2) == 4
    assert [outcome.kind for outcome in heard] == [expected, "missed"]


@pytest.mark.parametrize("unkept", ["", "it calls eval"])
def test_a_task_without_a_key_runs_and_is_told(run, unkept, caplog):
    argument, heard = 3 if unkept else threading.Lock(), []
    for results in (run("a"), run("b", "a")):
        called = ResumableFunction(type, results, CODE, unkept=unkept)
        with heard_by(heard.append):
            assert [called(argument), called(argument)] == [type(argument)] * 2
    assert len(heard) == 4
    assert all(one.reason.startswith(NOT_KEPT) and not one.is_hit for one in heard)
    assert len(caplog.records) == (0 if unkept else 1)


def test_where_the_run_is_not_seen_tasks_run(tmp_path):
    called = ResumableFunction(abs, RunResults(str(tmp_path / "elsewhere")), CODE)
    assert called(-2) == 2
    assert not (tmp_path / "elsewhere").exists()
