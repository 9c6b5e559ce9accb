"""Prices that a provider reported, stored under the state directory."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalable import settings
from scalable.errors import ProviderError, ScalableError
from scalable.files import private_directory, write_private
from scalable.spec.prices import UNITS, Price

logger = logging.getLogger("scalable.providers")

#: Version of the files; files of another version are ignored.
VERSION = 1
_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")


@dataclass(frozen=True)
class Refreshed:
    """The result of refreshing one provider's prices in one region."""

    region: str
    #: Number of prices.
    count: int
    #: File that stores them.
    path: Path
    #: Remark about prices that the provider did not report, or empty.
    note: str = ""


def path_of(provider: str, region: str) -> Path:
    """Return the price file of a region. Raise ProviderError for an invalid region name."""
    if not _REGION.fullmatch(region):
        raise ProviderError(f"{region!r} is not the name of a region")
    return settings.state_dir() / "prices" / f"{provider}-{region}.json"


def keep(provider: str, region: str, prices: Iterable[Price]) -> Path:
    """Replace the stored prices of a region atomically, in a file that only the user can read."""
    path = path_of(provider, region)
    data = {"version": VERSION, "prices": [price.to_dict() for price in prices]}
    try:
        private_directory(path.parent)
        write_private(path, json.dumps(data, indent=1) + "\n")
    except OSError as error:
        raise ProviderError(f"the prices cannot be kept in {path}: {error.strerror}") from error
    return path


def kept(provider: str, region: str) -> list[Price]:
    """Return the stored prices of a region. Empty if there are none, or if they are unreadable."""
    try:
        path = path_of(provider, region)
        if not path.exists():
            return []
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            return []
        return [_price(row) for row in data["prices"]]
    except (OSError, ValueError, KeyError, TypeError, ScalableError) as error:
        logger.warning("the kept prices of %s in %s are not used: %s", provider, region, error)
        return []


def _price(row: Mapping[str, Any]) -> Price:
    spot = row["spot_per_hour"]
    price = Price(
        shape=str(row["shape"]),
        region=str(row["region"]),
        per_hour=_amount(row["per_hour"]),
        spot_per_hour=None if spot is None else (_amount(spot[0]), _amount(spot[1])),
        unit=str(row["unit"]),
        minimum_s=_amount(row["minimum_s"]),
        granularity_s=_amount(row["granularity_s"]),
        date=str(row["date"]),
        source=str(row["source"]),
        origin="refreshed",
    )
    if price.unit not in UNITS:
        raise ValueError(f"unknown unit {price.unit!r}")
    return price


def _amount(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{value!r} is not a price")
    return number
