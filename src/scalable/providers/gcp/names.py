"""Names, labels and filters of Google Cloud. This module does no I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

LONGEST = 63
#: Prefix of all names that this package creates, so that a policy can limit rights to it.
PREFIX = "scalable"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def resource_name(*parts: str) -> str:
    """Return a valid, unique resource name. A changed or cut name gets a checksum."""
    written = "-".join((PREFIX, *parts))
    if _NAME.fullmatch(written):
        return written
    digest = checksum(written)
    name = re.sub(r"[^a-z0-9]+", "-", written.lower())[: LONGEST - len(digest) - 1]
    return f"{name.strip('-')}-{digest}"


def label_value(text: str) -> str:
    """Return a valid and unique label value for a string."""
    if _LABEL.fullmatch(text):
        return text
    digest = checksum(text)
    word = re.sub(r"[^a-z0-9_-]+", "-", text.lower())[: LONGEST - len(digest) - 1].strip("-_")
    return f"{word}-{digest}".lstrip("-")


def labels(marks: Mapping[str, str]) -> dict[str, str]:
    """Return labels to search by marks. Values are shortened to the length that labels allow."""
    return {key: label_value(text) for key, text in marks.items() if _KEY.fullmatch(key)}


def label_filter(marks: Mapping[str, str], *, joined: str = " ") -> str:
    """Return a filter for resources with the labels of all marks, joined by ``joined``."""
    found = labels(marks).items()
    return joined.join(f'(labels.{key}="{value}")' for key, value in sorted(found))


def secret_id(name: str, part: int = 0) -> str:
    """Return the id of the secret for one part of the files (from 0)."""
    written = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:200]
    suffix = f"-{part + 1}" if part else ""
    return f"{PREFIX}-{written}-{checksum(name)}{suffix}"


def network_tag(cluster_id: str, role: str = "") -> str:
    """Return the network tag of a cluster's machines, or of its machines in one role."""
    return "-".join(filter(None, (PREFIX, checksum(cluster_id, 12), role)))


def last(url: str) -> str:
    """Return the last part of a resource's URL, the resource's name."""
    return url.rpartition("/")[2]


def checksum(text: str, length: int = 8) -> str:
    """Return the first hexadecimal digits of a string's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]
