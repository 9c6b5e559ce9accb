"""Results of a run that are kept for the runs that resume it, without a cluster."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from scalable.cache.calls import Purpose
from scalable.cache.entries import Entry
from scalable.cache.outcomes import heard_by
from scalable.cache.resumable import ResumableFunction, SharedParts
from scalable.cache.run_calls import CallLog, Ended, RerunCause, RunCall, causes
from scalable.cache.run_results import RunResults, remove_expired

KEY = "ab" * 32


DESCRIBED = Entry(key=KEY, parts={"a": "1"}, function="m.f", created=0.0, cost_s=0.0, size=0)


@pytest.fixture
def run(tmp_path):
    """Make the results of a run, which may resume another."""

    def make(name, resumed=None):
        (tmp_path / name).mkdir(exist_ok=True)
        earlier = None if resumed is None else str(tmp_path / resumed)
        return RunResults(str(tmp_path / name), earlier)

    return make


def values(results, times=1):
    return [None if (one := results.take(KEY)) is None else one.value() for _ in range(times)]


# Numbered results --------------------------------------------------------------------------------


def test_each_of_several_equal_calls_takes_a_result_of_its_own(run):
    first = run("a")
    for value in ("one", "two", "three"):
        assert first.keep(KEY, value, DESCRIBED)
    assert values(run("b", "a"), 4) == ["one", "two", "three", None]
    # Another process that resumes the same run within the same run takes none a second time.
    assert values(run("b", "a"), 1) == [None]


def test_a_result_that_answers_is_kept_by_the_new_run_when_the_old_one_is_gone(run, tmp_path):
    run("a").keep(KEY, [1, 2], DESCRIBED)
    assert values(run("b", "a")) == [[1, 2]]
    (tmp_path / "a").rename(tmp_path / "removed")
    assert values(run("c", "b")) == [[1, 2]]


def test_a_result_that_ran_is_numbered_after_those_that_were_answered(run):
    run("a").keep(KEY, "one", DESCRIBED)
    second = run("b", "a")
    assert values(second, 2) == ["one", None]
    second.keep(KEY, "two", DESCRIBED)
    assert values(run("c", "b"), 3) == ["one", "two", None]


def test_without_a_resumed_run_nothing_is_found_even_if_an_equal_call_ran_in_this_one(run):
    results = run("a")
    results.keep(KEY, "one", DESCRIBED)
    assert values(results) == [None]


def test_on_another_file_system_results_are_copied(run, tmp_path, monkeypatch):
    run("a").keep(KEY, list(range(1000)), DESCRIBED)
    link = Path.hardlink_to

    def across(self, target):
        if Path(target).parent != self.parent:
            raise OSError(errno.EXDEV, "another file system")
        link(self, target)

    monkeypatch.setattr(Path, "hardlink_to", across)
    second = run("b", "a")
    assert values(second, 2) == [list(range(1000)), None]
    copied = tmp_path / "b" / "results" / "entries" / KEY[:2] / KEY
    assert copied.stat().st_nlink == 1


def test_a_damaged_result_answers_nothing_and_is_not_kept(run, tmp_path):
    run("a").keep(KEY, "one", DESCRIBED)
    entry = tmp_path / "a" / "results" / "entries" / KEY[:2] / KEY
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(data)
    second = run("b", "a")
    assert values(second) == [None]
    second.keep(KEY, "again", DESCRIBED)
    assert values(run("c", "b")) == ["again"]


def test_many_threads_take_each_result_once(run, at_once):
    first = run("a")
    for number in range(40):
        first.keep(KEY, number, DESCRIBED)
    second = run("b", "a")
    taken = at_once(lambda _: [second.take(KEY).value() for _ in range(10)], range(4))
    assert sorted(number for part in taken for number in part) == list(range(40))


def test_results_of_runs_that_ended_long_ago_are_removed(run, tmp_path):
    for name in ("run-old", "run-resumed", "run-new"):
        ResumableFunction(double, run(name), CODE)(1)
        long_ago = time.time() - (1000 if name != "run-new" else 0)
        results = tmp_path / name / "results"
        for path in (*results.glob("calls/*"), results):
            os.utime(path, (long_ago, long_ago))
    assert remove_expired(tmp_path, 500, except_for=tmp_path / "run-resumed") == 1
    left = sorted(path.parent.name for path in tmp_path.glob("*/results"))
    assert left == ["run-new", "run-resumed"]
    assert not list((tmp_path / "run-old").iterdir())


# Functions ---------------------------------------------------------------------------------------

CODE = SharedParts({"function": "1"}, {}, "code", "around")


def double(x):
    return 2 * x


def ends(results):
    return [call.end.value for call in results.log.calls()]


def test_a_function_runs_once_for_each_call_of_a_resumed_run(run):
    ran = []

    def count(x):
        ran.append(x)
        return x

    first = ResumableFunction(count, run("a"), CODE, Purpose("task", "tag"))
    assert [first(1), first(2), first(1)] == [1, 2, 1]
    second = ResumableFunction(count, run("b", "a"), CODE, Purpose("task", "tag"))
    heard = []
    with heard_by(heard.append):
        assert [second(2), second(1), second(3), second(1)] == [2, 1, 3, 1]
    assert ran == [1, 2, 1, 3]
    assert [outcome.kind for outcome in heard] == ["found", "found", "missed", "found"]
    assert heard[2].reason == "new, compared with the resumed run"
    with heard_by(heard.append):
        assert first(9) == 9
    assert len(heard) == 4  # a run that resumes none looks for no results
    assert ends(second.results) == ["answered", "answered", "kept", "answered"]
    assert {call.code for call in second.results.log.calls()} == {"code"}


@pytest.mark.parametrize("unkept", ["", "it calls eval"])
def test_a_call_without_a_key_runs_and_is_noted(run, unkept, caplog):
    argument = 3 if unkept else threading.Lock()
    for results in (run("a"), run("b", "a")):
        called = ResumableFunction(type, results, CODE, unkept=unkept)
        assert [called(argument), called(argument)] == [type(argument)] * 2
        (one, other) = results.log.calls()
        assert one.end is other.end is Ended.UNKEPT
        assert one.key == ""
        assert one.reason
    assert len(caplog.records) == (0 if unkept else 2)  # one for each run


def test_where_the_run_is_not_seen_calls_run(tmp_path):
    called = ResumableFunction(double, RunResults(str(tmp_path / "elsewhere")), CODE)
    assert called(2) == 4
    assert not (tmp_path / "elsewhere").exists()


# Notes -------------------------------------------------------------------------------------------


def test_torn_lines_and_unknown_ends_are_left_out(tmp_path):
    log = CallLog(tmp_path / "calls")
    log.add(RunCall("m.f", Ended.KEPT, key="1"))
    (path,) = (tmp_path / "calls").iterdir()
    with path.open("a") as file:
        file.write('{"function":"m.f","end":"flew"}\n[1]\n{"function":"m.g","end":"ke')
    assert [call.function for call in log.calls()] == ["m.f"]


def call(key, end=Ended.KEPT, function="f", code="1", environment="e"):
    return RunCall(function, end, key, code, environment)


def test_the_causes_of_calls_that_ran():
    earlier = [call("a"), call("b"), call("b"), call("c", Ended.FAILED), call("h", function="h")]
    later = [
        call("a", Ended.ANSWERED),
        call("b", Ended.ANSWERED),
        call("b"),  # the second result has gone
        call("b"),  # there were two
        call("c"),
        call("d", code="2"),
        call("e", environment="other"),
        call("f"),
        call("g", function="g"),
        call("", Ended.UNKEPT),
    ]
    assert causes(earlier, later) == {
        RerunCause.GONE: 1, RerunCause.NEW: 3, RerunCause.FAILED: 1, RerunCause.CODE: 1,
        RerunCause.ENVIRONMENT: 1, RerunCause.UNKEYED: 1,
    }  # fmt: skip
