"""Readers of the price and shape tables in a provider's folder."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from scalable.model.prices import Offer, Price, Shape

GIB = 2**30


@cache
def prices_of(package: str) -> tuple[Price, ...]:
    """Return the prices in ``prices.csv`` of a provider's package, in file order."""
    return tuple(_price(row) for row in _rows(package, "prices.csv"))


@cache
def shapes_of(package: str) -> Mapping[str, Shape]:
    """Map names to the shapes in ``shapes.csv`` of a provider's package."""
    return {row["shape"]: _shape(row) for row in _rows(package, "shapes.csv")}


def offers(prices: Iterator[Price] | list[Price], shapes: Mapping[str, Shape]) -> list[Offer]:
    """Return the prices of whole machines, each with its shape. Unknown shapes are left out."""
    return [
        Offer(shapes[price.shape], price)
        for price in prices
        if price.unit == "instance" and price.shape in shapes
    ]


def _rows(package: str, name: str) -> Iterator[dict[str, str]]:
    text = (files(package) / name).read_text(encoding="utf-8")
    return csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))


def _price(row: Mapping[str, str]) -> Price:
    low, high = row["spot_low"], row["spot_high"]
    return Price(
        shape=row["shape"],
        region=row["region"],
        per_hour=float(row["per_hour"]),
        spot_per_hour=(float(low), float(high)) if low and high else None,
        unit=row["unit"],
        minimum_s=float(row["minimum_s"]),
        granularity_s=float(row["granularity_s"]),
        date=row["date"] or None,
        source=row["source"],
    )


def _shape(row: Mapping[str, str]) -> Shape:
    return Shape(
        name=row["shape"],
        cpus=float(row["cpus"]),
        memory_bytes=int(float(row["memory_gib"]) * GIB),
        gpus=int(row["gpus"]),
        gpu_type=row["gpu_type"] or None,
    )
