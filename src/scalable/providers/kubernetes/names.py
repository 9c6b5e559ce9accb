"""Names and labels of a cluster's objects, without I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

LONGEST = 63
#: Prefix of our labels and annotations.
PREFIX = "scalable/"
CLUSTER, MANAGER, OWNER, ROLE, TAG, UNIT = (
    f"{PREFIX}{word}" for word in ("cluster", "manager", "owner", "role", "tag", "unit")
)
#: Roles of objects.
SCHEDULER, WORKER, MANAGING = "scheduler", "worker", "manager"
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def object_name(*parts: str) -> str:
    """Return a valid, unique object name, with a checksum if it had to be changed or cut."""
    written = "-".join(parts)
    name = re.sub(r"[^a-z0-9]+", "-", written.lower()).strip("-")
    if name == written and len(name) <= LONGEST:
        return name
    checksum = _checksum(written)
    return f"{name[: LONGEST - len(checksum) - 1].rstrip('-')}-{checksum}".lstrip("-")


def root_name(owner: str, cluster: str) -> str:
    """Return the name of a detached cluster's root object, which is unique for each pair."""
    return object_name("scalable", owner, cluster, _checksum(f"{len(owner)} {owner} {cluster}"))


def label_value(text: str) -> str:
    """Return a valid and unique label value for a string."""
    if _LABEL.fullmatch(text):
        return text
    checksum = _checksum(text)
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[: LONGEST - len(checksum) - 1]
    return f"{word.strip('-_.')}-{checksum}".lstrip("-")


def label(thing: Mapping[str, Any], key: str) -> str:
    """Return the value of an object's label, or an empty string without it."""
    return str((thing["metadata"].get("labels") or {}).get(key, ""))


def labels(cluster: str, role: str, **more: str) -> dict[str, str]:
    """Return the labels of an object with a role, and ``more`` without their prefix."""
    return {
        "app.kubernetes.io/name": "scalable",
        "app.kubernetes.io/managed-by": "scalable",
        CLUSTER: cluster,
        ROLE: role,
        **{f"{PREFIX}{key}": label_value(value) for key, value in more.items()},
    }


def selector(chosen: Mapping[str, str]) -> str:
    """Return a label selector for these labels."""
    return ",".join(f"{key}={value}" for key, value in chosen.items())


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]
