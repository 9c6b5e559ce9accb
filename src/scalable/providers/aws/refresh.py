"""Questions to AWS about its present prices: the Price List and the history of spot prices."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
import math
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.aws.prices import FARGATE_CPU, FARGATE_MEMORY
from scalable.providers.aws.quote import PACKAGE, region_of
from scalable.providers.price_files import Refreshed, keep
from scalable.providers.tables import shapes_of
from scalable.spec import DeploymentSpec
from scalable.spec.prices import Price

logger = logging.getLogger("scalable.providers")

#: Region of the endpoint of the Price List: it is in few regions and knows the prices of all.
PRICE_LIST_REGION = "us-east-1"
#: Seconds for all questions together, for a connection, and for one answer.
TOTAL_S, CONNECT_S, READ_S = 120.0, 10.0, 30.0
#: Days of the history of spot prices.
SPOT_DAYS = 7
#: Maximum number of pages of one question.
MOST_PAGES = 100
_FARGATE = re.compile(r"(?:[A-Z0-9]+-)?Fargate-(?P<what>vCPU-Hours:perCPU|GB-Hours)")
_FARGATE_NAMES = {"vCPU-Hours:perCPU": (FARGATE_CPU, "vcpu"), "GB-Hours": (FARGATE_MEMORY, "gb")}
_EC2_PAGE = "https://aws.amazon.com/ec2/pricing/on-demand/"
_FARGATE_PAGE = "https://aws.amazon.com/fargate/pricing/"


def refresh_prices(spec: DeploymentSpec) -> Refreshed:
    """Ask AWS for the prices of the target's region, and keep them.

    Raises
    ------
    ProviderError
        When no region is named, the credentials are missing or refused, or AWS does not answer in
        time; the kept prices stay as they were.
    """
    region = region_of(spec.options)
    if region is None:
        raise ProviderError(
            f"target {spec.target_name!r} names no region", hint="write `region`, or set AWS_REGION"
        )
    prices, note = asyncio.run(_asked(region))
    if not prices:
        raise ProviderError(f"AWS has no prices for region {region!r}")
    return Refreshed(region, len(prices), keep("aws", region, prices), note)


async def _asked(region: str) -> tuple[list[Price], str]:
    try:
        from aiobotocore.session import get_session
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise ProviderError(
            "asking AWS needs aiobotocore", hint="pip install 'scalable[aws]'"
        ) from error
    try:
        async with asyncio.timeout(TOTAL_S):
            return await _prices(get_session(), region, dt.datetime.now(dt.UTC))
    except TimeoutError as error:
        raise ProviderError(
            f"AWS did not tell its prices within {TOTAL_S:g} s", transient=True
        ) from error
    except ClientError as error:
        found = error.response.get("Error", {})
        raise ProviderError(
            f"AWS refused to tell prices: {found.get('Code')}: {found.get('Message')}",
            hint="the credentials need the permission pricing:GetProducts",
        ) from error
    except BotoCoreError as error:
        raise ProviderError(
            f"AWS could not be asked for prices: {error}",
            hint="see `aws configure`, or set AWS_PROFILE or AWS_ACCESS_KEY_ID",
        ) from error


async def _prices(session: Any, region: str, now: dt.datetime) -> tuple[list[Price], str]:
    """Return the prices of a region, and a remark about those that could not be asked."""
    from aiobotocore.config import AioConfig
    from botocore.exceptions import ClientError

    config = AioConfig(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"mode": "standard", "total_max_attempts": 4},
    )
    date = now.date().isoformat()
    async with session.create_client(
        "pricing", region_name=PRICE_LIST_REGION, config=config
    ) as client:
        found = await _fargate(client, region, date)
        found += await _instances(client, region, date)
    types = [price.shape for price in found if price.unit == "instance"]
    note = ""
    spot: dict[str, tuple[float, float]] = {}
    if types:
        try:
            async with session.create_client("ec2", region_name=region, config=config) as client:
                spot = await _spot(client, types, now)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code")
            note = f"spot prices could not be asked ({code}): discounts of the table are used"
            logger.debug("spot prices of %s: %s", region, error)
    return [_with_spot(price, spot.get(price.shape)) for price in found], note


def _with_spot(price: Price, spot: tuple[float, float] | None) -> Price:
    return price if spot is None else replace(price, spot_per_hour=spot)


async def _pages(
    client: Any, operation: str, rows: str, **asked: Any
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the rows of all pages of an answer."""
    token: str | None = None
    for _ in range(MOST_PAGES):
        more = {} if token is None else {"NextToken": token}
        page = await getattr(client, operation)(**asked, **more)
        for row in page.get(rows, ()):
            yield row
        token = page.get("NextToken") or None
        if token is None:
            return
    raise ProviderError(f"AWS answered {operation} with more than {MOST_PAGES} pages")


async def _products(client: Any, service: str, region: str, **fields: str) -> list[Any]:
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in {"regionCode": region, **fields}.items()
    ]
    asked = {"ServiceCode": service, "Filters": filters, "FormatVersion": "aws_v1"}
    return [
        json.loads(row) if isinstance(row, str) else row
        async for row in _pages(client, "get_products", "PriceList", **asked, MaxResults=100)
    ]


async def _fargate(client: Any, region: str, date: str) -> list[Price]:
    products = await _products(client, "AmazonECS", region, productFamily="Compute")
    found: dict[str, Price] = {}
    for product in products:
        match = _FARGATE.fullmatch(product["product"]["attributes"].get("usagetype", ""))
        hourly = on_demand_usd(product)
        if match is None or not hourly:
            continue
        name, unit = _FARGATE_NAMES[match["what"]]
        found[name] = Price(name, region, hourly, None, unit, date=date, source=_FARGATE_PAGE)
    return list(found.values())


async def _instances(client: Any, region: str, date: str) -> list[Price]:
    products = await _products(
        client,
        "AmazonEC2",
        region,
        operatingSystem="Linux",
        tenancy="Shared",
        capacitystatus="Used",
        preInstalledSw="NA",
    )
    known = shapes_of(PACKAGE)
    found: dict[str, Price] = {}
    for product in products:
        name, hourly = product["product"]["attributes"].get("instanceType"), on_demand_usd(product)
        if name in known and hourly:
            found[name] = Price(name, region, hourly, date=date, source=_EC2_PAGE)
    return list(found.values())


def on_demand_usd(product: Mapping[str, Any]) -> float | None:
    """Return the USD of one unit of a product of the Price List on demand; None without one.

    Parameters
    ----------
    product
        Product with its terms, in the format ``aws_v1``.
    """
    amounts = [
        float(dimension["pricePerUnit"]["USD"])
        for term in product.get("terms", {}).get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
        if "USD" in dimension.get("pricePerUnit", {})
    ]
    paid = [amount for amount in amounts if math.isfinite(amount) and amount > 0]
    return max(paid, default=None)


async def _spot(
    client: Any, types: Sequence[str], now: dt.datetime
) -> dict[str, tuple[float, float]]:
    """Return type -> least and greatest spot price of the last days, in all zones."""
    rows = [
        row
        async for row in _pages(
            client,
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=list(types),
            ProductDescriptions=["Linux/UNIX"],
            StartTime=now - dt.timedelta(days=SPOT_DAYS),
            EndTime=now,
        )
    ]
    return _ranges((row["InstanceType"], float(row["SpotPrice"])) for row in rows)


def _ranges(rows: Iterable[tuple[str, float]]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for name, amount in rows:
        low, high = found.get(name, (amount, amount))
        found[name] = (min(low, amount), max(high, amount))
    return found
