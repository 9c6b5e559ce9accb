"""Watch for the notice that the cloud will preempt this machine."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from scalable.errors import ProviderError
from scalable.providers.remote.cloud import MachineSide
from scalable.worker.notices import write_notice

logger = logging.getLogger("scalable.providers.remote")

POLL_S = 1.0


class NoticeWatch:
    """Polls for a preemption notice, and writes it to the file that the machine's workers read."""

    def __init__(self, side: MachineSide, path: Path) -> None:
        #: Set once there was a notice.
        self.noticed = threading.Event()
        self.path = path
        self._side = side
        self._ended = threading.Event()
        self._failing = False

    def start(self) -> None:
        """Watch in a daemon thread."""
        threading.Thread(target=self._watch, name="scalable notices", daemon=True).start()

    def close(self) -> None:
        """Stop watching, and return immediately."""
        self._ended.set()

    def look(self) -> bool:
        """Return whether there is a notice, and query the machine unless there was one."""
        if not self.noticed.is_set() and (left_s := self._asked()) is not None:
            logger.warning("the cloud takes this machine back in %.0f s", left_s)
            write_notice(self.path, left_s)
            self.noticed.set()
        return self.noticed.is_set()

    def _watch(self) -> None:
        while not self.look() and not self._ended.wait(POLL_S):
            pass

    def _asked(self) -> float | None:
        """Return the seconds that are left, or None without a notice or an answer."""
        try:
            left_s = self._side.notice()
        except (ProviderError, OSError) as error:
            if not self._failing:
                logger.warning("this machine is asked again whether it is taken back: %s", error)
            self._failing = True
            return None
        self._failing = False
        return left_s
