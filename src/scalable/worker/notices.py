"""Notices that the workers' machine will be preempted, for example by a cloud.

The program that starts the workers of a machine writes the time of the preemption into a file. Each
worker reads the file and reports to its scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any

from scalable.protocol.handlers import Handler, request

logger = logging.getLogger("scalable.worker")

#: Set in workers of clouds: the file that will contain the notice that the machine is preempted.
NOTICE_FILE = "SCALABLE_NOTICE_FILE"
POLL_S = 0.5
#: Seconds that the scheduler may take to answer before the report is repeated.
TELL_TIMEOUT_S = 10.0
TELL_AGAIN_S = 1.0


def write_notice(path: Path, left_s: float) -> None:
    """Write or replace the notice that the machine is preempted in ``left_s`` seconds."""
    # The monotonic clock is the same for all processes of a machine, and is never set.
    text = json.dumps({"notice_s": left_s, "end": time.monotonic() + left_s})
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def read_notice(path: Path) -> tuple[float, float] | None:
    """Return the remaining seconds now and at the time of the notice, or None without one."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return fields["end"] - time.monotonic(), fields["notice_s"]


async def tell_of_notice(worker: Any, path: Path) -> None:
    """Wait for a notice, and report it to the scheduler until the scheduler answers."""
    while (notice := read_notice(path)) is None:  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(POLL_S)
    while (left_s := notice[0]) > 0:
        reason = f"its machine is preempted by the cloud, which gave {notice[1]:.0f} s notice"
        logger.warning("worker %s leaves: %s", worker.name, reason)
        with contextlib.suppress(OSError, TimeoutError):
            notice_of = {"worker": worker.address, "left_s": left_s, "reason": reason}
            told = request(worker.scheduler, Handler.NOTICE, **notice_of)
            await asyncio.wait_for(told, TELL_TIMEOUT_S)
            return
        await asyncio.sleep(TELL_AGAIN_S)
        notice = read_notice(path) or notice
