"""Names and tags of a cluster's AWS resources. This module does no I/O."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalable.providers.remote.cloud import CLUSTER, MANAGER, NAME, OWNER, ROLE, TAG, MachineRequest

#: Maximum number of characters of a tag value.
VALUE_LENGTH = 256
#: Prefix of the tags with the names of a machine's units.
UNITS = "scalable-units"
#: Prefix of the tags that stop one unit of a machine; the unit's number follows.
STOPPED = "scalable-stopped-"
#: Tag of resources that clusters share.
SHARED = "scalable"
#: Tag with the creation time, in Unix seconds.
MADE = "scalable-made"
#: Tag with the region of a role's cluster, since roles are not regional.
REGION = "scalable-region"
#: Path of the roles, and prefix of the names of secrets.
ROLES_PATH, SECRETS_PATH = "/scalable/", "scalable/"
LOG_GROUP = "/scalable"
#: Name of the container in a task.
CONTAINER = "scalable"
ECS_CLUSTER = "scalable"

MARKS = (CLUSTER, OWNER, ROLE, MANAGER, TAG, NAME)

#: Session names of a role that do not identify the user.
_NOBODY = re.compile(r"(botocore-session|aws-cli-session|aws-go-sdk|aws-sdk-\w+)-\d+|i-[0-9a-f]+|[0-9a-f]{32}|\d+")  # noqa: E501  # fmt: skip


def owner_of(arn: str) -> str:
    """Return a user's name from an ARN, leaving out generic session names."""
    name, _, session = arn.rpartition("/")
    if ":assumed-role/" in arn and _NOBODY.fullmatch(session):
        arn = name
    return arn if len(arn) <= VALUE_LENGTH else f"{arn[:200]}/{digest(arn)}"


def tags(pairs: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in the format of EC2, IAM and Secrets Manager."""
    return [{"Key": key, "Value": value} for key, value in sorted(pairs.items())]


def ecs_tags(pairs: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in the format of ECS."""
    return [{"key": key, "value": value} for key, value in sorted(pairs.items())]


def pairs(found: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """Return the keys and values of tags in any service's format."""
    return {
        str(tag.get("Key", tag.get("key"))): str(tag.get("Value", tag.get("value", "")))
        for tag in found or ()
    }


def machine_tags(request: MachineRequest) -> dict[str, str]:
    """Return the tags of a machine: its marks, its name and its units."""
    return {**request.marks, NAME: request.name, **unit_tags(request.units)}


def unit_tags(units: Sequence[str]) -> dict[str, str]:
    """Return tags with the names of units, at most 256 characters in each value."""
    values = [""]
    for unit in units:
        longer = f"{values[-1]} {unit}".strip()
        if len(longer) <= VALUE_LENGTH:
            values[-1] = longer
        else:
            values.append(unit)
    if not units:
        return {}
    return {UNITS if not i else f"{UNITS}-{i}": value for i, value in enumerate(values)}


def units_in(tagged: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of units in the tags, in order."""
    units: list[str] = []
    for index in range(len(tagged)):
        value = tagged.get(UNITS if not index else f"{UNITS}-{index}")
        if value is None:
            break
        units += value.split()
    return tuple(units)


def marks_in(tagged: Mapping[str, str]) -> dict[str, str]:
    """Return the marks among the tags of a resource: tags that name its cluster, owner and role."""
    own = (UNITS, STOPPED, MADE, REGION)
    return {
        key: value
        for key, value in tagged.items()
        if key.startswith("scalable-") and not key.startswith(own)
    }


def has(tagged: Mapping[str, str], marks: Mapping[str, str]) -> bool:
    """Return whether a resource has all these marks."""
    return marks.items() <= tagged.items()


def digest(*parts: Any) -> str:
    """Return 12 hexadecimal characters that identify values."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def token(*parts: str) -> str:
    """Return a request's idempotency token, of 64 characters."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def family(cluster_id: str) -> str:
    """Return the name prefix of a cluster's task definitions and launch templates."""
    return f"scalable-{cluster_id}"


def content_name(cluster_id: str, purpose: str, content: Any) -> str:
    """Return the name of a resource, which contains a digest of the resource's content."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", purpose)[:80]
    return f"{family(cluster_id)}-{plain}-{digest(content)}"


def secret_name(cluster_id: str, name: str) -> str:
    """Return the name of the secret with a cluster's files of the given name."""
    return f"{SECRETS_PATH}{cluster_id}/{name}"


def log_stream(cluster_id: str, own: str) -> str:
    """Return the log stream's name for a task's id or an instance's name."""
    return f"{cluster_id}/{CONTAINER}/{own}"
