"""Snapshots of a cluster's status on disk, from which other processes list clusters."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from scalable.records import ClusterDirectory
from scalable.scheduler.controller import Controller

logger = logging.getLogger("scalable.lifecycle")

#: Seconds after which an unchanged status is written again.
INTERVAL_S = 2.0
#: Seconds between two copies of the costs, with which another scheduler would continue.
SPENDING_INTERVAL_S = 5.0
#: Shortest time between two snapshots, in seconds. Changes in between make one snapshot. If a
#: status takes long, the time is longer: snapshots take at most a share of the event loop's time.
PAUSE_S = 0.1
SHARE = 0.05
CLOSE_TIMEOUT_S = 5.0


class Snapshots:
    """Writer of ``status.json``: builds the status in the event loop, writes it in a thread.
    ``on_removed`` is called with a reason if the directory was removed. ``spending`` returns the
    costs so far, for another scheduler of the cluster.
    """

    def __init__(
        self,
        directory: ClusterDirectory,
        controller: Controller,
        on_removed: Callable[[str], Any] | None = None,
        spending: Callable[[], Mapping[str, Any] | None] | None = None,
    ) -> None:
        self._on_removed = on_removed
        self._spending = spending or (lambda: None)
        self._directory = directory
        self._controller = controller
        self._loop = controller.scheduler.loop
        self._written: Mapping[str, Any] = {}
        self._written_at = 0.0
        self._spending_at: float | None = None
        self._changed = False
        self._running = False
        self._closed = False
        self._writer: threading.Thread | None = None

    def changed(self) -> None:
        """Schedule a snapshot, due soon. Thread-safe."""
        self._changed = True
        if not self._running and not self._closed:
            self._running = True
            self._loop.add_callback(self._snapshot)

    def close(self) -> None:
        """Stop writing. Return when the last snapshot is on disk, or after 5 s."""
        self._closed = True
        writer = self._writer
        if writer is not None:
            writer.join(CLOSE_TIMEOUT_S)

    def _snapshot(self) -> None:
        if self._closed:
            return
        if self._writer is not None and self._writer.is_alive():
            self._loop.call_later(PAUSE_S, self._snapshot)  # the disk is slow
            return
        if not self._changed:
            self._running = False
            return
        self._changed = False
        began = time.perf_counter()
        status = self._controller.status()
        pause_s = max(PAUSE_S, (time.perf_counter() - began) / SHARE)
        told = {**status, "written_at": 0, "managers": _without_silence(status["managers"])}
        told["idle_ends_at"] = told["cost"] = None
        now = time.monotonic()
        if told != self._written or now - self._written_at >= INTERVAL_S:
            self._written, self._written_at = told, now
            spending = None
            if self._spending_at is None or now - self._spending_at >= SPENDING_INTERVAL_S:
                spending, self._spending_at = self._spending(), now
            self._writer = threading.Thread(
                target=self._write, args=(status, spending), name="scalable-status", daemon=True
            )
            self._writer.start()
        self._loop.call_later(pause_s, self._snapshot)

    def _write(self, status: Mapping[str, Any], spending: Mapping[str, Any] | None) -> None:
        try:
            self._directory.write_status(status)
            if spending is not None:
                self._directory.write_spending(spending)
        except OSError as error:
            logger.warning("the status of the cluster cannot be written: %s", error)
            path = self._directory.path
            # If the parent is missing, the file system is unmounted, and may come back.
            if self._on_removed is not None and path.parent.is_dir() and not path.exists():
                self._closed = True
                self._loop.add_callback(self._on_removed, "its record was removed")


def _without_silence(managers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in manager.items() if k != "silent_s"} for manager in managers]
