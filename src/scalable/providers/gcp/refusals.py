"""Classification of failures to start a Compute Engine instance, without I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from scalable.providers.gcp.api import NOT_FOUND, GoogleError, one_line
from scalable.providers.gcp.instances import Attempt


class FailureKind(Enum):
    """The kind of a failure, on which the next attempt depends."""

    #: The zone has no such machine now, but another zone may.
    EXHAUSTED = "exhausted"
    #: The zone never has such a machine.
    NOT_OFFERED = "not offered"
    #: A limit of the project in this zone is reached: another zone may work.
    QUOTA = "quota"
    #: A limit of the project in the whole region is reached: another machine type may work.
    QUOTA_OF_REGION = "quota of the region"
    #: The subnetwork has no free address: no other attempt can succeed.
    ADDRESSES = "addresses"
    #: The request can never succeed.
    FATAL = "fatal"


@dataclass(frozen=True)
class LaunchFailure:
    """A failure to start an instance."""

    kind: FailureKind
    #: Message of Compute Engine.
    message: str
    #: Name and limit of the exceeded quota; empty for other failures.
    quota: str = ""


_EXHAUSTED = ("RESOURCE_POOL_EXHAUSTED", "STOCKOUT", "RESOURCE_AVAILABILITY")
_QUOTA = ("QUOTAEXCEEDED", "QUOTA_EXCEEDED")
_QUOTA_NAME = re.compile(
    r"[Qq]uota '?(?P<name>[A-Z0-9_]+)'? exceeded\.?\s*(Limit: (?P<limit>[0-9]+))?"
)


def failure_of(code: str, message: str, status: int = 0) -> LaunchFailure:
    """Return the failure for an error code or reason, its message, and the HTTP status or 0."""
    word, text = code.upper(), one_line(message)
    if any(part in word for part in _EXHAUSTED) or "RESOURCE_POOL_EXHAUSTED" in text:
        return LaunchFailure(FailureKind.EXHAUSTED, text)
    if any(part in word for part in _QUOTA):
        found = _QUOTA_NAME.search(text)
        quota = ""
        if found is not None:
            limit = f" (limit {found['limit']})" if found["limit"] else ""
            quota = f"{found['name']}{limit}"
        regional = "in region" in text or "ALL_REGIONS" in text or "globally" in text
        return LaunchFailure(
            FailureKind.QUOTA_OF_REGION if regional else FailureKind.QUOTA, text, quota
        )
    if "IP_SPACE_EXHAUSTED" in word:
        return LaunchFailure(FailureKind.ADDRESSES, text)
    about_type = "machineType" in text or "Machine type" in text or "acceleratorType" in text
    absent = "does not exist" in text or "not found" in text or "not available" in text
    if about_type and (absent or status == NOT_FOUND):
        return LaunchFailure(FailureKind.NOT_OFFERED, text)
    return LaunchFailure(FailureKind.FATAL, text)


def failure_in(operation: Mapping[str, Any]) -> LaunchFailure | None:
    """Return the failure of an operation, or None if it has none."""
    errors = (operation.get("error") or {}).get("errors") or ()
    if errors:
        return failure_of(str(errors[0].get("code", "")), str(errors[0].get("message", "")))
    status = int(operation.get("httpErrorStatusCode") or 0)
    if status >= 400:
        return failure_of("", str(operation.get("httpErrorMessage", "")), status)
    return None


def failure_from(error: GoogleError) -> LaunchFailure:
    """Return the failure for an answer."""
    return failure_of(error.reason, error.message, error.status)


class Tried:
    """The attempts for one machine and their failures, which rule out other attempts."""

    def __init__(self) -> None:
        self.failures: list[tuple[Attempt, LaunchFailure]] = []

    def note(self, attempt: Attempt, failure: LaunchFailure) -> None:
        self.failures.append((attempt, failure))

    def is_pointless(self, attempt: Attempt) -> bool:
        """Return whether earlier failures imply that an attempt must fail."""
        return any(_rules_out(earlier, failure, attempt) for earlier, failure in self.failures)

    def never(self) -> bool:
        """Return whether no later attempt can succeed either."""
        kinds = {failure.kind for _, failure in self.failures}
        return kinds == {FailureKind.NOT_OFFERED}

    def told(self) -> str:
        """Return what was tried, in plain words."""
        return "; ".join(_told(self.failures))


def _rules_out(earlier: Attempt, failure: LaunchFailure, attempt: Attempt) -> bool:
    if failure.kind is FailureKind.ADDRESSES:
        return True
    if earlier.shape != attempt.shape:
        return False
    if failure.kind is FailureKind.QUOTA_OF_REGION:
        return earlier.spot == attempt.spot
    if failure.kind is FailureKind.NOT_OFFERED:
        return earlier.zone == attempt.zone
    return earlier == attempt


def _told(failures: Iterable[tuple[Attempt, LaunchFailure]]) -> list[str]:
    zones: dict[tuple[FailureKind, str, str], list[str]] = {}
    for attempt, failure in failures:
        name = f"spot {attempt.shape}" if attempt.spot else attempt.shape
        zones.setdefault((failure.kind, name, failure.quota), []).append(attempt.zone)
    words = {
        FailureKind.EXHAUSTED: "{zones} has no {shape} free",
        FailureKind.NOT_OFFERED: "{zones} does not offer {shape}",
        FailureKind.QUOTA: "the quota {quota} of the project is used up in {zones} ({shape})",
        FailureKind.QUOTA_OF_REGION: "the quota {quota} of the project is used up ({shape})",
        FailureKind.ADDRESSES: "the subnetwork has no free address",
    }
    return [
        words.get(kind, "{zones} refused {shape}").format(
            zones=", ".join(dict.fromkeys(found)), shape=name, quota=quota or "for machines"
        )
        for (kind, name, quota), found in zones.items()
    ]


def attempts(zones: Iterable[str], shapes: Iterable[str], spot: bool) -> list[Attempt]:
    """Return all attempts for a machine: each type in all zones, before the next type."""
    zones = list(zones)
    return [Attempt(zone, shape, spot) for shape in shapes for zone in zones]
