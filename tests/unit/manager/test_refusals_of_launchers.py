"""Consequences for a pool whose launcher has refused units."""

from typing import Any, cast

from scalable.errors import ProviderError
from scalable.manager.pools import Pool
from scalable.manager.reconciler import REFUSED_LIMIT_S, refused


def pool() -> Pool:
    return Pool("a", cast("Any", None))


def test_an_unexpected_error_gives_the_pool_up_and_is_named():
    reason = refused(pool(), KeyError("a"), 1, 0.0)
    assert reason == "its launcher failed: KeyError('a')"


def test_temporary_refusals_are_repeated_after_a_pause_but_not_for_ever():
    asked, error = pool(), ProviderError("busy", transient=True)
    assert refused(asked, error, 1, 100.0) is None
    assert not asked.may_start(100.0)
    assert refused(asked, error, 1, 100.0 + REFUSED_LIMIT_S) is None
    reason = refused(asked, error, 1, 101.0 + REFUSED_LIMIT_S)
    assert reason == f"refused for {REFUSED_LIMIT_S:g} s; the last error: busy"
