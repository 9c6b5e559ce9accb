"""Differences between the software of workers and of the scheduler."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from distributed.versions import get_versions

logger = logging.getLogger("scalable.scheduler")

#: Packages that encode and decode calls between processes.
COMPARED = frozenset({"python", "dask", "distributed", "msgpack", "cloudpickle"})


class Versions:
    """Comparison of the workers' versions with those of this process.

    Each difference is logged once.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def compare(self, worker: str, theirs: Mapping[str, Any]) -> None:
        """Log a warning where a worker has other versions: calls travel as pickles.

        Parameters
        ----------
        worker
            Name of the worker.
        theirs
            Versions, as the worker sent them when it connected.
        """
        told = theirs.get("packages") or {}
        differing = [
            f"{package} {told[package]} there, {version} here"
            for package, version in self._packages.items()
            if package in COMPARED and told.get(package) not in (None, version)
        ]
        if differing and (words := "; ".join(differing)) not in self._logged:
            self._logged.add(words)
            logger.warning("worker %s has other versions: %s", worker, words)

    @cached_property
    def _packages(self) -> Mapping[str, str]:
        packages: Mapping[str, str] = get_versions()["packages"]
        return packages
