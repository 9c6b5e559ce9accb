"""Remote places in which this user has started something, remembered on this machine.

Remains of a killed process may be in a place that the variables of the present shell do not name.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from scalable import settings
from scalable.errors import ClusterError
from scalable.files import private_directory, read_private, write_private

#: Seconds for which a place is remembered after it was last used.
REMEMBERED_S = 30 * 86400.0


def _directory() -> Path:
    return settings.state_dir() / "places"


def remember(provider: str, place: Mapping[str, str]) -> None:
    """Remember a place; where that cannot be written, it is found by its clusters alone."""
    text = json.dumps({"provider": provider, "place": dict(place)}, sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    with suppress(OSError, ClusterError):
        write_private(private_directory(_directory()) / f"{name}.json", text)


def remembered(provider: str) -> list[dict[str, str]]:
    """Return the places of a provider that were used lately, in a fixed order."""
    found = []
    for path in sorted(_directory().glob("*.json")):
        with suppress(OSError, ClusterError, ValueError, KeyError, TypeError, AttributeError):
            if time.time() - path.stat().st_mtime > REMEMBERED_S:
                path.unlink()
                continue
            row = json.loads(read_private(path))
            if row["provider"] == provider:
                found.append({str(key): str(text) for key, text in row["place"].items()})
    return found


def all_places(provider: str, present: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the places of the present shell, and the remembered ones after them."""
    return present + [place for place in remembered(provider) if place not in present]
