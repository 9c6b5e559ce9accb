"""Reasons for which calls run again."""

from __future__ import annotations

from enum import StrEnum

#: ``state`` of the row of a call that begins again; the row has ``reason`` and ``lost``.
RERUN = "rerun"


class Reason(StrEnum):
    """Reason for which a call runs again."""

    #: Its worker was lost while it ran.
    WORKER_LOST = "worker lost"
    #: Its worker left as planned, or was taken back, while it ran.
    TAKEN_BACK = "worker taken back"
    #: The worker that held its result was lost.
    RESULT_LOST = "result lost"
    #: It failed, and was submitted with further tries.
    RETRIES = "failed, tried again"
    #: It failed, and a client asked for another try.
    RETRIED = "retried by the user"
    #: Its result was released, and is needed again.
    NEEDED = "result needed again"
