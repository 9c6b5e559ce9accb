"""Prices of single workers, as a manager tells them to the scheduler. No I/O."""

from __future__ import annotations

from scalable.planning.plan import written_prices
from scalable.spec import DeploymentSpec, Starting

#: Length in seconds to which billed time is rounded up. A price for cores counts each second.
GRANULARITY_S = 1.0


def unit_prices(spec: DeploymentSpec, starting: Starting) -> dict[str, dict[str, float]]:
    """Return the price of one worker of each tag that has a price.

    Parameters
    ----------
    spec
        Deployment spec of the target that starts the workers.
    starting
        Time and price of starting a worker there.

    Returns
    -------
    dict
        Tag -> ``per_hour`` (price of one worker for one hour), ``minimum_s`` (shortest billed
        time in seconds) and ``granularity_s`` (length in seconds to which billed time is rounded
        up). Tags without a known price are left out.
    """
    prices = written_prices(spec)
    if prices is None:
        return {}
    return {
        tag: {
            "per_hour": hourly,
            "minimum_s": starting.billed_least_s,
            "granularity_s": GRANULARITY_S,
        }
        for tag, hourly in prices.hourly_by_tag.items()
    }
