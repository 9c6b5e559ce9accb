"""Functions that clients send in place of others, so that results are kept for resuming."""

import logging

import pytest

from scalable.cache.calls import Purpose
from scalable.cache.resumable import ResumableFunction
from scalable.client.caching import ResumableCalls
from scalable.model.cache_settings import CacheSettings, Keeping


def plain(x):
    return x


async def waiting(x):
    return x


def dynamic(x):
    return eval(x)


class Odd:
    """A function whose comparison has no truth value, as that of an array."""

    def __call__(self, x):
        return x

    def __eq__(self, other):
        raise ValueError("ambiguous")

    def __hash__(self):
        return 1


@pytest.fixture
def calls(tmp_path):
    def make(keeping=True, is_remote=False):
        kept = Keeping(str(tmp_path)) if keeping else None
        return ResumableCalls(lambda: CacheSettings(keeping=kept), lambda: is_remote)

    return make


@pytest.mark.parametrize(
    ("function", "options"), [(waiting, {}), (plain, {"actor": True}), (plain, {"actors": True})]
)
def test_coroutines_and_actors_are_sent_as_they_are(calls, function, options):
    assert calls().function(function, Purpose(), options) is function


def test_the_same_function_is_sent_for_all_calls_of_a_purpose(calls):
    made = calls()
    sent = made.function(plain, Purpose("a", "b"), {})
    assert isinstance(sent, ResumableFunction)
    assert sent.__wrapped__ is plain
    assert made.function(plain, Purpose("a", "b"), {}) is sent
    assert made.function(plain, Purpose("a", "c"), {}) is not sent
    assert made.function(sent, Purpose("a", "b"), {}) is sent
    assert isinstance(made.function(Odd(), Purpose(), {}), ResumableFunction)
    assert isinstance(made.function(Odd(), Purpose(), {}), ResumableFunction)


def test_what_has_no_key_is_named_once_and_runs(calls, caplog):
    made = calls()
    with caplog.at_level(logging.WARNING):
        sent = [made.function(dynamic, Purpose(), {}) for _ in range(3)]
    assert sent[0].unkept
    assert sent[0]("1 + 1") == 2
    (record,) = (r for r in caplog.records if r.name == "scalable.client")
    assert "dynamic are not kept" in record.getMessage()


def test_workers_without_the_file_system_are_named_once(calls, caplog):
    made = calls(is_remote=True)
    with caplog.at_level(logging.WARNING):
        assert [made.function(plain, Purpose(), {}) for _ in range(2)] == [plain, plain]
    (record,) = caplog.records
    assert "without this file system" in record.getMessage()
