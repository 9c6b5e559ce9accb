"""Questions to Google about its present prices: the Cloud Billing Catalog."""

from __future__ import annotations

import datetime as dt
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.gcp.quote import PACKAGE, region_of
from scalable.providers.price_files import Refreshed, keep
from scalable.providers.tables import GIB, shapes_of
from scalable.spec import DeploymentSpec
from scalable.spec.prices import Price, Shape

logger = logging.getLogger("scalable.providers")

#: Id of Compute Engine in the catalog.
COMPUTE_ENGINE = "services/6F81-5844-456A"
CATALOG = "https://cloudbilling.googleapis.com"
#: Environment variable with another address of the catalog.
CATALOG_VARIABLE = "SCALABLE_GCP_CATALOG"
#: Seconds for all questions together, and for one answer.
TOTAL_S, ANSWER_S = 120.0, 60.0
#: Number of prices on one page, and maximum number of pages.
PAGE_SIZE, MOST_PAGES = 5000, 40
_PAGE = "https://cloud.google.com/compute/vm-instance-pricing"
_SCOPE = "https://www.googleapis.com/auth/cloud-billing.readonly"
_SPOT = "Spot Preemptible "
#: Beginning of a type's name -> beginning of the names of its cores and memory in the catalog.
_FAMILIES = {
    "e2": "E2 Instance",
    "n1": "N1 Predefined Instance",
    "n2": "N2 Instance",
    "n2d": "N2D AMD Instance",
    "c2d": "C2D AMD Instance",
    "c3": "C3 Instance",
    "g2": "G2 Instance",
    "a2": "A2 Instance",
}
#: Type of GPU -> beginning of its name in the catalog.
_GPUS = {"l4": "Nvidia L4 GPU", "a100": "Nvidia Tesla A100 GPU", "t4": "Nvidia Tesla T4 GPU"}


def refresh_prices(spec: DeploymentSpec) -> Refreshed:
    """Ask Google for the prices of the target's region, and keep them.

    Raises
    ------
    ProviderError
        When no region is named, the credentials are missing or refused, or Google does not answer
        in time; the kept prices stay as they were.
    """
    region = region_of(spec.options)
    if region is None:
        raise ProviderError(
            f"target {spec.target_name!r} names no region", hint="write `region` or `zone`"
        )
    rows = list(_catalog())
    prices = prices_from(rows, region, dt.datetime.now(dt.UTC).date().isoformat())
    if not prices:
        raise ProviderError(f"Google's catalog has no prices for region {region!r}")
    return Refreshed(region, len(prices), keep("gcp", region, prices))


def prices_from(rows: Iterable[Mapping[str, Any]], region: str, date: str) -> list[Price]:
    """Return the prices of the machine types of this package in a region.

    The catalog prices cores, memory and GPUs by themselves; the price of a type is their sum.

    Parameters
    ----------
    rows
        SKUs of the catalog.
    region
        Region.
    date
        Present day (ISO 8601).
    """
    # Name of a resource -> USD for one of it for an hour, on demand and at spot prices.
    demand: dict[str, float] = {}
    spot: dict[str, float] = {}
    for row in rows:
        usage = row.get("category", {}).get("usageType")
        if region not in row.get("serviceRegions", ()) or usage not in ("OnDemand", "Preemptible"):
            continue
        description, hourly = str(row.get("description", "")), _hourly(row)
        if hourly is None:
            continue
        name = description.removeprefix(_SPOT)
        (spot if usage == "Preemptible" else demand).setdefault(_resource(name), hourly)
    found = []
    for shape in shapes_of(PACKAGE).values():
        hourly = _sum(shape, demand)
        if hourly is None:
            continue
        cheaper = _sum(shape, spot)
        found.append(
            Price(
                shape.name,
                region,
                hourly,
                None if cheaper is None else (cheaper, cheaper),
                date=date,
                source=_PAGE,
            )
        )
    return found


def _resource(description: str) -> str:
    """Return the name of a resource without its place: the text before ``running``."""
    for word in (" running", " attached"):
        description = description.partition(word)[0]
    return description.strip()


def _sum(shape: Shape, priced: Mapping[str, float]) -> float | None:
    family = _FAMILIES.get(shape.name.partition("-")[0])
    if family is None:
        return None
    parts = [
        (f"{family} Core", shape.cpus),
        (f"{family} Ram", shape.memory_bytes / GIB),
        *([(_GPUS[shape.gpu_type], float(shape.gpus))] if shape.gpu_type else []),
    ]
    if any(name not in priced for name, _ in parts):
        return None
    return sum(priced[name] * amount for name, amount in parts)


def _hourly(row: Mapping[str, Any]) -> float | None:
    """Return the USD for an hour of a SKU that is priced by the hour; None for others."""
    for info in row.get("pricingInfo", ())[-1:]:
        expression = info.get("pricingExpression", {})
        if expression.get("usageUnit") not in ("h", "GiBy.h"):
            return None
        for rate in expression.get("tieredRates", ())[-1:]:
            price = rate.get("unitPrice", {})
            amount = float(price.get("units") or 0) + float(price.get("nanos") or 0) / 1e9
            return amount if math.isfinite(amount) and amount > 0 else None
    return None


def _catalog() -> Iterator[Mapping[str, Any]]:
    """Yield the SKUs of Compute Engine."""
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession
        from requests.exceptions import RequestException
    except ImportError as error:
        raise ProviderError(
            "asking Google needs google-auth", hint="pip install 'scalable[gcp]'"
        ) from error
    until = time.monotonic() + TOTAL_S
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
        opened: Any = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        with opened as session:
            token = ""
            for _ in range(MOST_PAGES):
                left = until - time.monotonic()
                if left <= 0:
                    raise ProviderError(
                        f"Google did not tell its prices within {TOTAL_S:g} s", transient=True
                    )
                answer = session.get(
                    f"{os.environ.get(CATALOG_VARIABLE, CATALOG)}/v1/{COMPUTE_ENGINE}/skus",
                    params={"pageSize": PAGE_SIZE, "currencyCode": "USD", "pageToken": token},
                    timeout=min(ANSWER_S, left),
                    max_allowed_time=left,
                )
                if not answer.ok:
                    raise _refused(answer)
                page = answer.json()
                yield from page.get("skus", ())
                token = page.get("nextPageToken") or ""
                if not token:
                    return
    except GoogleAuthError as error:
        raise ProviderError(
            f"Google could not be asked for prices: {str(error).splitlines()[0]}",
            hint="run `gcloud auth application-default login`",
        ) from error
    except (RequestException, ValueError) as error:
        raise ProviderError(
            f"Google could not be asked for prices: {error}", transient=True
        ) from error
    raise ProviderError(f"Google's catalog has more than {MOST_PAGES} pages")


def _refused(answer: Any) -> ProviderError:
    try:
        told = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        told = answer.reason
    return ProviderError(
        f"Google refused to tell prices: {answer.status_code}: {told}",
        hint="enable the Cloud Billing API in the project of the credentials",
    )
