"""Prices of workers and of a cluster's programs, for the scheduler and the managers."""

from __future__ import annotations

from dataclasses import replace

from scalable.forecasting import quoted_prices
from scalable.model import DeploymentSpec
from scalable.model.costs import HourlyPrice
from scalable.planning.billing import always_of
from scalable.planning.unit_prices import unit_prices
from scalable.providers.registry import get_provider, provider_traits


def worker_prices(spec: DeploymentSpec) -> dict[str, dict[str, float]]:
    """Map tags to the price of one worker, as a manager reports it to the scheduler."""
    quoted = quoted_prices(get_provider(spec.provider_name), spec)
    return unit_prices(spec, provider_traits(spec.provider_name).starting, quoted)


def with_prices(spec: DeploymentSpec) -> DeploymentSpec:
    """Return the spec with its provider's prices. Those of the manifest take precedence."""
    quoted = quoted_prices(get_provider(spec.provider_name), spec)
    return spec if quoted is None else replace(spec, prices={**quoted.hourly_by_tag, **spec.prices})


def program_price(spec: DeploymentSpec, *, detached: bool) -> HourlyPrice | None:
    """Return the price of the scheduler's and, if detached, its managers' machines, or None."""
    quoted = quoted_prices(get_provider(spec.provider_name), spec, detached=detached)
    always = always_of(quoted, None)
    if not always.rate:
        return None
    return HourlyPrice(3600 * always.rate, always.minimum_s, always.granularity_s)
