"""``scalable prices``."""

from __future__ import annotations

import datetime as dt
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalable.cli.options import Command, manifest_argument, target_option
from scalable.cli.output import Output, Result
from scalable.forecasting import quoted_prices
from scalable.model import Price, Rate
from scalable.planning.billing import old_prices
from scalable.providers.registry import provider_traits
from scalable.runs.report.table import table
from scalable.session.request import Request

if TYPE_CHECKING:
    from scalable.planning import Prices

_HEADER = ("for", "machine", "workers", "an hour", "spot", "prices of", "date")
_FROM = {
    "manifest": "",
    "table": "the prices in this package, as published at ",
}


@click.command(cls=Command)
@manifest_argument
@target_option("The target whose prices are shown; by default SCALABLE_TARGET or the only one.")
def command(manifest: Path | None, target: str | None, *, output: Output) -> Result:
    """Show the prices that plans use, and where they come from."""
    request = Request.read(manifest, target)
    request.require_valid()
    for warning in request.validate().warnings:
        output.note(warning.render())
    prices = quoted_prices(request.provider, request.spec, detached=True)
    return _result(request, prices, dt.datetime.now(dt.UTC).date())


def _rates(prices: Prices | None, least_s: float) -> list[tuple[str, Rate]]:
    """Return rates by tag or program. ``least_s`` is the least billed time of manifest prices."""
    if prices is None:
        return []
    written = {
        tag: Rate(
            Price(tag, "", hourly, None, minimum_s=least_s, source=prices.source, origin="manifest")
        )
        for tag, hourly in prices.hourly_by_tag.items()
        if tag not in prices.rates
    }
    return [*(written | dict(prices.rates)).items(), *prices.always.items()]


def _result(request: Request, prices: Prices | None, today: dt.date) -> Result:
    least_s = provider_traits(request.spec.provider_name).starting.billed_least_s
    rates = _rates(prices, least_s)
    unit = "USD" if prices is None else prices.currency
    lines = [
        f"Target: {request.target} (provider {request.spec.provider_name}), {unit} an hour",
        "",
    ]
    if not rates:
        lines.append("No price is known: write `prices` or `price_per_core_hour` in the target.")
    else:
        lines += table(_HEADER, [_row(name, rate) for name, rate in rates])
        lines.append("")
        for price in dict.fromkeys(_origin(rate.price) for _, rate in rates):
            lines += textwrap.wrap(price, 100, subsequent_indent="  ", break_long_words=False)
    old = [] if prices is None else list(old_prices(prices, today))
    lines += [line for text in old for line in textwrap.wrap(text, 100)]
    data: dict[str, Any] = {
        "target": request.target,
        "provider": request.spec.provider_name,
        "currency": unit,
        "prices": {name: rate.to_dict() for name, rate in rates},
        "notes": [] if prices is None else list(prices.notes),
        "old": bool(old),
    }
    return Result("\n".join(lines) + "\n", data)


def _row(name: str, rate: Rate) -> tuple[str, ...]:
    price = rate.price
    spot = "-"
    if price.spot_per_hour is not None:
        low, high = (f"{end:.4g}" for end in price.spot_per_hour)
        spot = f"{low} to {high}"
    return (
        name,
        price.shape,
        str(rate.units),
        f"{price.per_hour:.4g}",
        spot,
        price.origin,
        price.date or "-",
    )


def _origin(price: Price) -> str:
    """Return a line about the source of prices."""
    where = f"{price.origin}: {_FROM[price.origin]}{price.source}"
    billed = ""
    if price.minimum_s or price.granularity_s > 1:
        billed = (
            f"; billed for {price.minimum_s:g} s at least, in steps of {price.granularity_s:g} s"
        )
    return f"{where}{billed}"
