"""Prices of workers and of a cluster's programs, as the parts of a cluster are told them."""

from __future__ import annotations

from dataclasses import replace

from scalable.forecasting import quoted_prices
from scalable.planning.billing import always_of
from scalable.planning.unit_prices import unit_prices
from scalable.providers.registry import get_provider, provider_traits
from scalable.spec import DeploymentSpec
from scalable.spec.costs import HourlyPrice


def worker_prices(spec: DeploymentSpec) -> dict[str, dict[str, float]]:
    """Return tag -> price of one worker, as a manager tells it to the scheduler.

    Parameters
    ----------
    spec
        Deployment spec of the manager's target.
    """
    quoted = quoted_prices(get_provider(spec.provider_name), spec)
    return unit_prices(spec, provider_traits(spec.provider_name).starting, quoted)


def with_prices(spec: DeploymentSpec) -> DeploymentSpec:
    """Return the spec with its provider's prices, for a manager that cannot ask for them.

    Prices of the manifest come first.

    Parameters
    ----------
    spec
        Deployment spec of the target.
    """
    quoted = quoted_prices(get_provider(spec.provider_name), spec)
    return spec if quoted is None else replace(spec, prices={**quoted.hourly_by_tag, **spec.prices})


def program_price(spec: DeploymentSpec, *, detached: bool) -> HourlyPrice | None:
    """Return the price of the machines of the scheduler and, if detached, of its managers.

    Return None if they cost nothing extra.

    Parameters
    ----------
    spec
        Deployment spec of the target of the scheduler.
    detached
        Whether the cluster outlives its creator.
    """
    quoted = quoted_prices(get_provider(spec.provider_name), spec, detached=detached)
    always = always_of(quoted, None)
    if not always.rate:
        return None
    return HourlyPrice(3600 * always.rate, always.minimum_s, always.granularity_s)
