"""Versions of Python and packages that a client and its scheduler must share."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

from scalable import settings

#: Package whose releases must be equal, because they encode messages in different ways.
STRICT = "distributed"
PACKAGES = ("dask", STRICT, "scalable")
_ON = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True)
class ImageVersions:
    """The versions in the image of a scheduler."""

    image: str
    #: Version by package, including ``python`` and ``scalable``.
    packages: Mapping[str, str]
    #: True if clients with another release of ``distributed`` may connect.
    allows_mismatch: bool = False

    @classmethod
    def of_this_process(cls) -> Self | None:
        """Return this process's versions, or None if it does not run in an image."""
        image = os.environ.get(settings.IMAGE, "")
        if not image:
            return None
        allowed = os.environ.get(settings.ALLOW_VERSION_MISMATCH, "").lower() in _ON
        return cls(image, own_versions(), allowed)

    def to_message(self) -> list[Any]:
        return [self.image, dict(self.packages), self.allows_mismatch]

    @classmethod
    def from_message(cls, message: list[Any]) -> Self:
        image, packages, allows_mismatch = message
        return cls(image, packages, bool(allows_mismatch))

    def differences(self) -> dict[str, tuple[str, str]]:
        """Map packages to (image's, own) versions that differ, of Python only major and minor."""
        found = {}
        for package, here in own_versions().items():
            there = str(self.packages.get(package, "unknown"))
            if "unknown" not in (there, here) and _counting(package, there) != _counting(
                package, here
            ):
                found[package] = there, here
        return found


def _counting(package: str, text: str) -> str:
    return ".".join(text.split(".")[:2]) if package == "python" else text


@cache
def own_versions() -> dict[str, str]:
    """Return this process's versions by package. Imports no package."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # used from its source directory
            found[package] = "unknown"
    return found
