"""How a cluster is, written down for whoever lists clusters."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from scalable.records import ClusterDirectory
from scalable.scheduler.controller import Controller

logger = logging.getLogger("scalable.lifecycle")

INTERVAL_S = 2.0


class Snapshots:
    """Writes what a controller says of its cluster to ``status.json``.

    Parameters
    ----------
    directory
        The cluster.
    controller
        Who is asked.
    """

    def __init__(self, directory: ClusterDirectory, controller: Controller) -> None:
        self._directory = directory
        self._controller = controller
        self._written: Mapping[str, Any] = {}
        self._written_at = 0.0

    def write(self) -> None:
        """Write it where it says something new, or the last one is old."""
        status = self._controller.status()
        told = {**status, "written_at": 0, "managers": _without_silence(status["managers"])}
        told["idle_ends_at"] = None
        now = time.monotonic()
        if told == self._written and now - self._written_at < INTERVAL_S:
            return
        self._written, self._written_at = told, now
        try:
            self._directory.write_status(status)
        except OSError as error:
            logger.warning("the cluster's status cannot be written: %s", error)


def _without_silence(managers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in manager.items() if k != "silent_s"} for manager in managers]
