"""Warnings about workers whose package versions differ from the scheduler's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from distributed.versions import get_versions

logger = logging.getLogger("scalable.scheduler")

#: Packages whose versions matter, because they encode and decode tasks between processes.
COMPARED = frozenset({"python", "dask", "distributed", "msgpack", "cloudpickle"})


class Versions:
    """Compares package versions of workers with those in the scheduler's process.
    The same difference is logged once, however many workers have it.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()
        self._sets: dict[str, dict[str, Any]] = {}

    def compare(self, worker: str, theirs: Mapping[str, Any]) -> None:
        """Log a warning if a worker's versions differ, since pickled tasks may then fail.
        ``theirs`` are the versions that it sent in the form of Dask's ``get_versions``.
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

    def shared(self, theirs: dict[str, Any]) -> dict[str, Any]:
        """Return the first equal set of versions, so that workers share it.
        There are as few sets as images, hosts and environments.
        """
        return self._sets.setdefault(repr(theirs), theirs)

    @cached_property
    def _packages(self) -> Mapping[str, str]:
        packages: Mapping[str, str] = get_versions()["packages"]
        return packages
