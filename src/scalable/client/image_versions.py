"""Comparison of a client's versions with those in the image of its scheduler."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from scalable.errors import ClusterError
from scalable.protocol.operations import VERSIONS
from scalable.protocol.versions import STRICT, ImageVersions

logger = logging.getLogger("scalable.client")

_told: set[str] = set()


def compare_versions(facts: Mapping[str, Any]) -> None:
    """Compare the versions in the scheduler's image with those of this process.

    Raises ClusterError if the releases of ``distributed`` differ and the target does not allow it.
    Other differences cause one warning. Without an image nothing is compared, because Dask warns of
    differences.
    """
    message = facts.get(VERSIONS)
    if not message:
        return
    there = ImageVersions.from_message(message)
    differing = there.differences()
    if STRICT in differing and not there.allows_mismatch:
        image, here = differing[STRICT]
        raise ClusterError(
            f"image {there.image} has {STRICT} {image}, and this process has {STRICT} {here}: "
            "other releases encode messages differently",
            hint=f"use an image with {STRICT} {here} (`scalable image build` makes one), install "
            f"{STRICT} {image} here, or set allow_version_mismatch: true in the target",
        )
    if not differing:
        return
    words = ", ".join(f"{name} {image} (here {here})" for name, (image, here) in differing.items())
    told = f"image {there.image} has other versions: {words}; calls and results may not be readable"
    if told not in _told:
        _told.add(told)
        logger.warning("%s", told)
