"""``scalable prices``."""

from __future__ import annotations

import datetime as dt
import textwrap
from functools import partial
from pathlib import Path

import click

from scalable.cli.options import Command, manifest_argument, target_option
from scalable.cli.output import Output, Result
from scalable.forecasting import quoted_prices
from scalable.model import Price, Rate
from scalable.planning import Prices
from scalable.planning.billing import old_prices
from scalable.providers.registry import provider_traits
from scalable.session.request import Request
from scalable.views.tables import text_table

_HEADER = ("for", "machine", "workers", "an hour", "spot", "prices of", "date")
_FROM = {"manifest": "", "table": "the prices in this package, as published at "}


@click.command(cls=Command)
@manifest_argument
@target_option("The target whose prices are shown; by default SCALABLE_TARGET or the only one.")
def command(manifest: Path | None, target: str | None, *, output: Output) -> Result:
    """Show the prices that plans use, and where they come from."""
    request = Request.read(manifest, target)
    for warning in request.require_valid().warnings:
        output.note(warning.render())
    prices = quoted_prices(request.provider, request.spec, detached=True)
    provider = request.spec.provider_name
    unit = "USD" if prices is None else prices.currency
    lines = [f"Target: {request.target} (provider {provider}), {unit} an hour", ""]
    rates: list[tuple[str, Rate]] = []
    old: list[str] = []
    if prices is not None:
        rates = _rates(prices, provider_traits(provider).starting.billed_least_s)
        old = list(old_prices(prices, dt.datetime.now(dt.UTC).date()))
    if not rates:
        lines.append("No price is known: write `prices` or `price_per_core_hour` in the target.")
    else:
        rows = [_row(name, rate.price, rate.units) for name, rate in rates]
        lines += [*text_table(_HEADER, rows).lines(), ""]
        for origin in dict.fromkeys(_origin(rate.price) for _, rate in rates):
            lines += textwrap.wrap(origin, 100, subsequent_indent="  ", break_long_words=False)
    lines += [line for text in old for line in textwrap.wrap(text, 100)]
    data = {
        "target": request.target,
        "provider": provider,
        "currency": unit,
        "prices": {name: rate.to_dict() for name, rate in rates},
        "notes": [] if prices is None else list(prices.notes),
        "old": bool(old),
    }
    return Result("\n".join(lines) + "\n", data)


def _rates(prices: Prices, least_s: float) -> list[tuple[str, Rate]]:
    """Return rates by tag or program. ``least_s`` is the least billed time of manifest prices."""
    of_manifest = partial(Price, minimum_s=least_s, source=prices.source, origin="manifest")
    written = {
        tag: Rate(of_manifest(tag, "", hourly))
        for tag, hourly in prices.hourly_by_tag.items()
        if tag not in prices.rates
    }
    return [*(written | dict(prices.rates)).items(), *prices.always.items()]


def _row(name: str, price: Price, workers: int) -> tuple[object, ...]:
    spot = price.spot_per_hour
    between = None if spot is None else f"{spot[0]:.4g} to {spot[1]:.4g}"
    hourly = f"{price.per_hour:.4g}"
    return name, price.shape, workers, hourly, between, price.origin, price.date


def _origin(price: Price) -> str:
    """Return a line about the source of prices."""
    where = f"{price.origin}: {_FROM[price.origin]}{price.source}"
    if not price.minimum_s and price.granularity_s <= 1:
        return where
    steps = f"in steps of {price.granularity_s:g} s"
    return f"{where}; billed for {price.minimum_s:g} s at least, {steps}"
