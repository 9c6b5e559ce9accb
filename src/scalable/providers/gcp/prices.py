"""Table of Google Cloud prices in this package, by region."""

from __future__ import annotations

from scalable.providers.tables import offers, prices_of, shapes_of
from scalable.spec.prices import Offer, Price

_PACKAGE = "scalable.providers.gcp"


def regions() -> list[str]:
    """Return the regions of the table, in its order."""
    return list(dict.fromkeys(price.region for price in prices_of(_PACKAGE)))


def prices(region: str) -> list[Price]:
    """Return the prices of a region, or an empty list if the table does not have it."""
    return [price for price in prices_of(_PACKAGE) if price.region == region]


def instances(region: str) -> list[Offer]:
    """Return a region's machine types, such as ``n1-standard-4+t4x1`` with a T4, and prices."""
    return offers(prices(region), shapes_of(_PACKAGE))
