"""Consequences for a pool whose launcher has refused units. No I/O."""

from __future__ import annotations

import logging

from scalable.errors import ProviderError
from scalable.manager.launcher import LimitReachedError
from scalable.manager.pools import Pool

logger = logging.getLogger("scalable.manager")

#: Seconds of refusals with temporary errors after which a pool is degraded.
REFUSED_LIMIT_S = 600.0


def refused(pool: Pool, error: BaseException, count: int, now: float) -> str | None:
    """Record a refusal of ``count`` units in their pool, and delay or reduce the next request.
    Return the reason why the pool has to be given up, or None if it is retried.
    """
    if isinstance(error, LimitReachedError):
        if pool.limited(now, count, error.message):
            logger.warning("pool %r: %s; it is asked for more later", pool.tag, error)
        return None
    if not isinstance(error, ProviderError):
        logger.critical("the launcher of pool %r failed", pool.tag, exc_info=error)
        return f"its launcher failed: {error!r}"
    if not error.transient:
        return str(error)
    if pool.refused_for(now, error.message) > REFUSED_LIMIT_S:
        return f"refused for {REFUSED_LIMIT_S:g} s; the last: {error}"
    pool.pause(now)
    logger.warning("pool %r: %s; it is tried again", pool.tag, error)
    return None
