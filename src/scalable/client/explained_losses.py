"""Reasons for the loss of workers, fetched from the scheduler for the errors of their tasks."""

from __future__ import annotations

import logging
from typing import Any

from dask.utils import key_split
from distributed import Client
from distributed.scheduler import KilledWorker

from scalable.protocol.handlers import SchedulerCalls
from scalable.protocol.lost_calls import LostWorkers, OutOfMemory
from scalable.protocol.operations import CODE

logger = logging.getLogger("scalable.client")


async def with_reasons(client: Client, error: KilledWorker, key: Any) -> KilledWorker:
    """Return an error for a lost task that contains the reasons for the loss of its workers."""
    facts = getattr(client, "scheduler_facts", {})
    if isinstance(error, OutOfMemory | LostWorkers) or not facts.get(CODE):
        return error
    lost = str(getattr(error.last_worker, "name", ""))
    try:
        reasons = await SchedulerCalls(client.scheduler).reasons_of_loss(
            key, [lost] if lost else []
        )
    except (OSError, TimeoutError) as problem:
        logger.debug("the loss of %s is not explained: %r", key, problem)
        return error
    name = error.task if error.task != key else key_split(key)
    last, allowed = error.last_worker, error.allowed_failures
    if reasons and all(known.memory for known in reasons):
        final = reasons[-1]
        return OutOfMemory(name, last, allowed, final.memory, final.memory, final.component)
    return LostWorkers(name, last, allowed, [(known.name, known.reason) for known in reasons])
