"""Reasons for which tasks run again."""

from __future__ import annotations

from enum import StrEnum

#: ``state`` of the row of a task that starts again. The row has ``reason`` and ``lost``.
RERUN = "rerun"


class Reason(StrEnum):
    """Reason for which a task runs again."""

    #: Its worker was lost while it ran.
    WORKER_LOST = "worker lost"
    #: Its worker left as planned, or was preempted, while it ran.
    TAKEN_BACK = "worker taken back"
    #: The worker that held its result was lost.
    RESULT_LOST = "result lost"
    #: It failed, and was submitted with retries.
    RETRIES = "failed, tried again"
    #: It failed, and a client requested a retry.
    RETRIED = "retried by the user"
    #: Its result was released, and is needed again.
    NEEDED = "result needed again"
