"""Watch of a cloud's machine for the notice that the cloud takes the machine back."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from scalable.errors import ProviderError
from scalable.remote.cloud import MachineSide
from scalable.worker.notices import write_notice

logger = logging.getLogger("scalable.remote")

POLL_S = 1.0


class NoticeWatch:
    """Asks the machine again and again for a notice, and passes it on to the machine's workers.

    Parameters
    ----------
    side
        The cloud as the machine sees it.
    path
        File that the workers read, whose path they have in the variable ``NOTICE_FILE`` of
        :mod:`scalable.worker.notices`.

    Attributes
    ----------
    noticed
        Set once there was a notice.
    """

    def __init__(self, side: MachineSide, path: Path) -> None:
        self.noticed = threading.Event()
        self.path = path
        self._side = side
        self._ended = threading.Event()
        self._failing = False

    def start(self) -> None:
        """Begin to watch, in a thread that ends with the process."""
        threading.Thread(target=self._watch, name="scalable notices", daemon=True).start()

    def close(self) -> None:
        """Stop watching; return at once."""
        self._ended.set()

    def look(self) -> bool:
        """Return whether there is a notice, after asking the machine unless there was one."""
        if not self.noticed.is_set() and (left_s := self._asked()) is not None:
            logger.warning("the cloud takes this machine back in %.0f s", left_s)
            write_notice(self.path, left_s)
            self.noticed.set()
        return self.noticed.is_set()

    def _watch(self) -> None:
        while not self.look() and not self._ended.wait(POLL_S):
            pass

    def _asked(self) -> float | None:
        """Return the seconds that are left; None without a notice, or without an answer."""
        try:
            left_s = self._side.notice()
        except (ProviderError, OSError) as error:
            if not self._failing:
                logger.warning("this machine is asked again whether it is taken back: %s", error)
            self._failing = True
            return None
        self._failing = False
        return left_s
