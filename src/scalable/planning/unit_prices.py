"""Prices of single workers, as a manager reports them to the scheduler. Does no I/O."""

from __future__ import annotations

from scalable.model import DeploymentSpec, Starting
from scalable.planning.billing import GRANULARITY_S
from scalable.planning.knowledge import Prices
from scalable.planning.plan import written_prices


def unit_prices(
    spec: DeploymentSpec, starting: Starting, prices: Prices | None = None
) -> dict[str, dict[str, float]]:
    """Return ``per_hour``, ``minimum_s`` and ``granularity_s`` of each tag with a known price.
    Billed time is at least ``minimum_s`` seconds, rounded up to a multiple of ``granularity_s``.
    Without ``prices``, only the manifest's prices are known.
    """
    known = prices or written_prices(spec)
    if known is None:
        return {}
    terms = {
        tag: (rate.price.minimum_s, rate.price.granularity_s) for tag, rate in known.rates.items()
    }
    usual = (starting.billed_least_s, GRANULARITY_S)
    return {
        tag: {
            "per_hour": hourly,
            "minimum_s": terms.get(tag, usual)[0],
            "granularity_s": terms.get(tag, usual)[1],
        }
        for tag, hourly in known.hourly_by_tag.items()
    }
