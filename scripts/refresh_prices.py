"""Rewrite the tables of prices in the package from the price lists of AWS and Google Cloud.

python scripts/refresh_prices.py aws                # all regions of the table
python scripts/refresh_prices.py gcp us-central1    # these regions

It uses the credentials of this machine. AWS needs the permissions pricing:GetProducts and
ec2:DescribeSpotPriceHistory, Google Cloud the Cloud Billing API in the project of the credentials.
Rows without an answer stay. Where a price list has no spot price, the discount of the table stays.
Afterwards bring the head of the table up to date, which says where the numbers are from.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from scalable.model.prices import Price, Shape
from scalable.pricing.tables import GIB, prices_of, shapes_of

PROVIDERS = Path(__file__).parents[1] / "src" / "scalable" / "providers"
AWS, GCP = "scalable.providers.aws", "scalable.providers.gcp"


def rewritten(text: str, found: Iterable[Price]) -> str:
    """Return the text of a table with prices that were found replaced or added."""
    lines = text.splitlines()
    rows = {
        (row["shape"], row["region"]): row
        for row in csv.DictReader(line for line in lines if not line.startswith("#"))
    }
    for price in found:
        old, spot = rows.get((price.shape, price.region)), price.spot_per_hour
        if spot is None and old is not None and old["spot_low"]:
            scale = price.per_hour / float(old["per_hour"])
            spot = (float(old["spot_low"]) * scale, float(old["spot_high"]) * scale)
        low, high = ("", "") if spot is None else (f"{amount:.6g}" for amount in spot)
        rows[price.shape, price.region] = {
            "shape": price.shape,
            "region": price.region,
            "per_hour": f"{price.per_hour:.6g}",
            "spot_low": low,
            "spot_high": high,
            "unit": price.unit,
            "minimum_s": f"{price.minimum_s:g}",
            "granularity_s": f"{price.granularity_s:g}",
            "date": price.date or "",
            "source": price.source,
        }
    made = io.StringIO()
    made.writelines(f"{line}\n" for line in lines if line.startswith("#"))
    table = csv.DictWriter(made, next(iter(rows.values())), lineterminator="\n")
    table.writeheader()
    table.writerows(rows.values())
    return made.getvalue()


# AWS ----------------------------------------------------------------------------------------------

#: Region of the endpoint of the Price List: it is in few regions and knows the prices of all.
PRICE_LIST_REGION = "us-east-1"
#: Days of the history of spot prices.
SPOT_DAYS = 7
FARGATE = re.compile(r"(?:[A-Z0-9]+-)?Fargate-(?P<what>vCPU-Hours:perCPU|GB-Hours)")
FARGATE_NAMES = {"vCPU-Hours:perCPU": ("fargate-vcpu", "vcpu"), "GB-Hours": ("fargate-gb", "gb")}
EC2_PAGE = "https://aws.amazon.com/ec2/pricing/on-demand/"
FARGATE_PAGE = "https://aws.amazon.com/fargate/pricing/"
LINUX = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "preInstalledSw": "NA",
}


def aws_prices(region: str, date: str) -> Iterator[Price]:
    """Yield the prices of a region: the Price List, and the last days of spot prices."""
    from botocore.session import get_session

    session = get_session()
    products = session.create_client("pricing", region_name=PRICE_LIST_REGION)
    for attributes, hourly in _products(products, "AmazonECS", region, productFamily="Compute"):
        match = FARGATE.fullmatch(attributes.get("usagetype", ""))
        if match is not None:
            name, unit = FARGATE_NAMES[match["what"]]
            yield Price(name, region, hourly, None, unit, date=date, source=FARGATE_PAGE)
    known = shapes_of(AWS)
    on_demand = {
        attributes["instanceType"]: hourly
        for attributes, hourly in _products(products, "AmazonEC2", region, **LINUX)
        if attributes.get("instanceType") in known
    }
    spot = _spot(session.create_client("ec2", region_name=region), sorted(on_demand))
    for name, hourly in on_demand.items():
        yield Price(name, region, hourly, spot.get(name), date=date, source=EC2_PAGE)


def _products(
    client: Any, service: str, region: str, **fields: str
) -> Iterator[tuple[dict[str, str], float]]:
    """Yield attributes of products of the Price List, and their USD on demand."""
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in {"regionCode": region, **fields}.items()
    ]
    pages = client.get_paginator("get_products").paginate(
        ServiceCode=service, Filters=filters, FormatVersion="aws_v1"
    )
    for product in (json.loads(row) for page in pages for row in page["PriceList"]):
        amounts = [
            float(dimension["pricePerUnit"].get("USD", 0))
            for term in product.get("terms", {}).get("OnDemand", {}).values()
            for dimension in term["priceDimensions"].values()
        ]
        if max(amounts, default=0) > 0:
            yield product["product"]["attributes"], max(amounts)


def _spot(client: Any, types: list[str]) -> dict[str, tuple[float, float]]:
    """Map types to their least and greatest spot price of the last days, in all zones."""
    if not types:
        return {}
    now = dt.datetime.now(dt.UTC)
    pages = client.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=types,
        ProductDescriptions=["Linux/UNIX"],
        StartTime=now - dt.timedelta(days=SPOT_DAYS),
        EndTime=now,
    )
    found: dict[str, tuple[float, float]] = {}
    for row in (row for page in pages for row in page["SpotPriceHistory"]):
        amount = float(row["SpotPrice"])
        low, high = found.get(row["InstanceType"], (amount, amount))
        found[row["InstanceType"]] = (min(low, amount), max(high, amount))
    return found


# Google Cloud -------------------------------------------------------------------------------------

CATALOG = "https://cloudbilling.googleapis.com"
#: Id of Compute Engine in the catalog.
COMPUTE_ENGINE = "services/6F81-5844-456A"
SCOPE = "https://www.googleapis.com/auth/cloud-billing.readonly"
GCP_PAGE = "https://cloud.google.com/compute/vm-instance-pricing"
ANSWER_S = 60.0
#: Prefix of a type's name -> prefix of the names of its cores and memory in the catalog.
FAMILIES = {
    "e2": "E2 Instance",
    "n1": "N1 Predefined Instance",
    "n2": "N2 Instance",
    "n2d": "N2D AMD Instance",
    "c2d": "C2D AMD Instance",
    "c3": "C3 Instance",
    "g2": "G2 Instance",
    "a2": "A2 Instance",
}
#: Type of GPU -> prefix of its name in the catalog.
GPUS = {"l4": "Nvidia L4 GPU", "a100": "Nvidia Tesla A100 GPU", "t4": "Nvidia Tesla T4 GPU"}


def gcp_prices(region: str, date: str) -> Iterator[Price]:
    """Yield the prices of a region: the catalog prices cores, memory and GPUs by themselves."""
    # Name of a resource -> USD for one of it for an hour, on demand and at spot prices.
    priced: dict[str, dict[str, float]] = {"OnDemand": {}, "Preemptible": {}}
    for row in _catalog():
        usage, hourly = row["category"]["usageType"], _hourly(row)
        if region in row["serviceRegions"] and usage in priced and hourly:
            name = row["description"].removeprefix("Spot Preemptible ")
            name = name.partition(" running")[0].partition(" attached")[0]
            priced[usage].setdefault(name.strip(), hourly)
    for shape in shapes_of(GCP).values():
        hourly, cheaper = (_sum(shape, priced[usage]) for usage in ("OnDemand", "Preemptible"))
        if hourly is not None:
            spot = None if cheaper is None else (cheaper, cheaper)
            yield Price(shape.name, region, hourly, spot, date=date, source=GCP_PAGE)


@cache
def _catalog() -> list[Mapping[str, Any]]:
    """Return the SKUs of Compute Engine."""
    import google.auth
    from google.auth.transport.requests import AuthorizedSession

    credentials, _ = google.auth.default(scopes=[SCOPE])
    with AuthorizedSession(credentials) as session:
        token, found = None, []
        while token != "":
            answer = session.get(
                f"{CATALOG}/v1/{COMPUTE_ENGINE}/skus",
                params={"pageSize": 5000, "currencyCode": "USD", "pageToken": token},
                timeout=ANSWER_S,
            )
            answer.raise_for_status()
            page = answer.json()
            found += page["skus"]
            token = page.get("nextPageToken", "")
    return found


def _hourly(row: Mapping[str, Any]) -> float | None:
    """Return the USD for an hour of a SKU, or None if it is not priced by the hour."""
    for info in row["pricingInfo"][-1:]:
        expression = info["pricingExpression"]
        if expression["usageUnit"] in ("h", "GiBy.h"):
            price = expression["tieredRates"][-1]["unitPrice"]
            return float(price.get("units") or 0) + float(price.get("nanos") or 0) / 1e9
    return None


def _sum(shape: Shape, priced: Mapping[str, float]) -> float | None:
    family = FAMILIES.get(shape.name.partition("-")[0])
    parts = {f"{family} Core": shape.cpus, f"{family} Ram": shape.memory_bytes / GIB}
    if shape.gpu_type:
        parts[GPUS[shape.gpu_type]] = float(shape.gpus)
    if not all(name in priced for name in parts):
        return None
    return sum(priced[name] * amount for name, amount in parts.items())


# --------------------------------------------------------------------------------------------------

SOURCES: dict[str, tuple[str, Callable[[str, str], Iterator[Price]]]] = {
    "aws": (AWS, aws_prices),
    "gcp": (GCP, gcp_prices),
}


def main(arguments: list[str] | None = None) -> int:
    """Rewrite the table of a provider."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("provider", choices=SOURCES)
    parser.add_argument("region", nargs="*")
    given = parser.parse_args(arguments)
    package, ask = SOURCES[given.provider]
    today = dt.datetime.now(dt.UTC).date().isoformat()
    regions = given.region or sorted({price.region for price in prices_of(package)})
    table = PROVIDERS / given.provider / "prices.csv"
    for region in regions:
        found = list(ask(region, today))
        table.write_text(rewritten(table.read_text(encoding="utf-8"), found), encoding="utf-8")
        print(f"{region}: {len(found)} prices")
    return 0


if __name__ == "__main__":
    sys.exit(main())
