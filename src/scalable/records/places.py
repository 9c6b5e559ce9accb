"""Remote sites on which this user has started something, recorded on this machine.
Remains of a killed process may be on a site that the current shell's variables do not name.
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

#: Seconds for which a site is kept after its last use.
REMEMBERED_S = 30 * 86400.0


def _directory() -> Path:
    return settings.state_dir() / "places"


def remember(provider: str, place: Mapping[str, str]) -> None:
    """Record a site. Without write access it is found by its clusters only."""
    text = json.dumps({"provider": provider, "place": dict(place)}, sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    with suppress(OSError, ClusterError):
        write_private(private_directory(_directory()) / f"{name}.json", text)


def remembered(provider: str) -> list[dict[str, str]]:
    """Return the recently used sites of a provider, in a fixed order."""
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
    """Return the sites of the current shell, followed by the recorded ones."""
    return present + [place for place in remembered(provider) if place not in present]
