"""Names, labels and filters of Google Cloud. No I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

LONGEST = 63
#: First word of the names of everything that is made here, by which a policy can limit rights.
PREFIX = "scalable"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def resource_name(*parts: str) -> str:
    """Return a valid name of a resource, made of texts; different texts give different names.

    A name that had to be changed or cut ends with a checksum of the texts.
    """
    written = "-".join((PREFIX, *parts))
    if _NAME.fullmatch(written):
        return written
    digest = checksum(written)
    name = re.sub(r"[^a-z0-9]+", "-", written.lower())[: LONGEST - len(digest) - 1]
    return f"{name.strip('-')}-{digest}"


def label_value(text: str) -> str:
    """Return a valid value of a label for a text; different texts give different values."""
    if _LABEL.fullmatch(text):
        return text
    digest = checksum(text)
    word = re.sub(r"[^a-z0-9_-]+", "-", text.lower())[: LONGEST - len(digest) - 1].strip("-_")
    return f"{word}-{digest}".lstrip("-")


def labels(marks: Mapping[str, str]) -> dict[str, str]:
    """Return the labels by which marks are searched; the exact texts are stored elsewhere."""
    return {key: label_value(text) for key, text in marks.items() if _KEY.fullmatch(key)}


def label_filter(marks: Mapping[str, str], *, joined: str = " ") -> str:
    """Return the filter expression for resources with the labels of marks.

    Parameters
    ----------
    marks
        Mark -> text.
    joined
        Text between the terms; all of them have to hold.
    """
    found = labels(marks).items()
    return joined.join(f'(labels.{key}="{value}")' for key, value in sorted(found))


def secret_id(name: str, part: int = 0) -> str:
    """Return the id of the secret that keeps a part of files, counted from 0."""
    written = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:200]
    suffix = f"-{part + 1}" if part else ""
    return f"{PREFIX}-{written}-{checksum(name)}{suffix}"


def network_tag(cluster_id: str, role: str = "") -> str:
    """Return the network tag of a cluster's machines, or of those in one role."""
    return "-".join(filter(None, (PREFIX, checksum(cluster_id, 12), role)))


def last(url: str) -> str:
    """Return the last part of a resource's URL: its name."""
    return url.rpartition("/")[2]


def checksum(text: str, length: int = 8) -> str:
    """Return the first hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]
