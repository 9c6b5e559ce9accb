"""Prices of single workers, as a manager tells them to the scheduler. No I/O."""

from __future__ import annotations

from scalable.planning.billing import GRANULARITY_S
from scalable.planning.knowledge import Prices
from scalable.planning.plan import written_prices
from scalable.spec import DeploymentSpec, Starting


def unit_prices(
    spec: DeploymentSpec, starting: Starting, prices: Prices | None = None
) -> dict[str, dict[str, float]]:
    """Return the price of one worker of each tag that has a price.

    Parameters
    ----------
    spec
        Deployment spec of the target that starts the workers.
    starting
        Time and price of starting a worker there.
    prices
        Prices of the target, with those of its provider; None for those of the manifest alone.

    Returns
    -------
    dict
        Tag -> ``per_hour`` (price of one worker for one hour), ``minimum_s`` (shortest billed
        time in seconds) and ``granularity_s`` (length in seconds to which billed time is rounded
        up). Tags without a known price are left out.
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
