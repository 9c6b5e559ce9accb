"""Functions that clients send in place of others, so that results are kept for resuming."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from scalable.cache.calls import Purpose, cached
from scalable.cache.resume import NOT_ASKED, ResumableFunction
from scalable.client.caching import TaskCache
from scalable.model.cache_settings import CacheSettings, Keeping
from scalable.protocol.operations import CARRIES


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
    def make(keeping=True, is_remote=False, resumed=None):
        kept = Keeping(str(tmp_path), resumed) if keeping else None
        client = SimpleNamespace(_scheduler_identity={CARRIES: is_remote})
        return TaskCache(client, CacheSettings(keeping=kept))

    return make


@pytest.mark.parametrize(
    ("function", "options"), [(waiting, {}), (plain, {"actor": True}), (plain, {"actors": True})]
)
def test_coroutines_and_actors_are_sent_as_they_are(calls, function, options):
    assert calls().resumable(function, options, Purpose(), None) is function


def test_the_same_function_is_sent_for_all_calls_of_a_purpose(calls):
    made = calls()
    sent = made.resumable(plain, {}, Purpose("a", "b"), None)
    assert isinstance(sent, ResumableFunction)
    assert sent.__wrapped__ is plain
    assert made.resumable(plain, {}, Purpose("a", "b"), None) is sent
    assert made.resumable(plain, {}, Purpose("a", "c"), None) is not sent
    assert made.resumable(sent, {}, Purpose("a", "b"), None) is sent
    assert isinstance(made.resumable(Odd(), {}, Purpose(), None), ResumableFunction)
    assert isinstance(made.resumable(Odd(), {}, Purpose(), None), ResumableFunction)


def test_what_has_no_key_is_named_once_and_runs(calls, caplog):
    made = calls()
    with caplog.at_level(logging.WARNING):
        sent = [made.resumable(dynamic, {}, Purpose(), None) for _ in range(3)]
    assert sent[0].unkept
    assert sent[0]("1 + 1") == 2
    (record,) = (r for r in caplog.records if r.name == "scalable.client")
    assert "dynamic are not kept" in record.getMessage()


def test_workers_without_the_file_system_are_named_once(calls, caplog):
    made = calls(is_remote=True)
    with caplog.at_level(logging.WARNING):
        assert [made.resumable(plain, {}, Purpose(), None) for _ in range(2)] == [plain, plain]
    (record,) = caplog.records
    assert "without this file system" in record.getMessage()


def test_a_call_that_is_not_to_be_kept_is_counted_in_a_resumed_run(calls, tmp_path):
    assert calls().resumable(plain, {}, Purpose(), False) is plain
    made = calls(resumed=str(tmp_path / "earlier"))
    assert made.resumable(plain, {}, Purpose(), False).unkept == NOT_ASKED
    assert made.resumable(plain, {}, Purpose(), None).unkept == ""


def test_cached_calls_without_a_key_are_counted_however_they_are_sent(calls, tmp_path):
    made = calls()
    made._given = replace(made._given, url=str(tmp_path / "cache"))
    sent = []
    made.map(dynamic, [["1"]], {}, Purpose(), True, lambda own, *_, **__: sent.append(own))
    sent.append(made.function(dynamic, Purpose(), True))
    assert [each.function for each in sent] == [dynamic, dynamic]
    assert all("eval" in each.unkept for each in sent)


def test_a_decorated_function_that_is_not_to_be_cached_is_sent_without_its_decorator(calls):
    assert calls(keeping=False).resumable(cached(plain), {}, Purpose(), False) is plain
