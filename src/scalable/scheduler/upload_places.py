"""Choice of the workers to which a large argument of a call is sent."""

from __future__ import annotations

import math
import random
from heapq import nlargest

from distributed import Scheduler
from distributed.scheduler import WorkerState

#: Largest number of workers that are compared, and of those that are named: one may leave.
COMPARED, NAMED = 20, 3


def upload_places(scheduler: Scheduler, tag: str) -> list[str]:
    """Return the addresses of workers that may get an argument of calls of a tag.

    They are workers of the calls' own pool, so that the argument counts for the memory of no other
    pool; any workers while the pool has none. Of those that are compared, they have the most free
    memory.

    Parameters
    ----------
    scheduler
        The scheduler.
    tag
        Tag of the calls; empty for calls that run on any worker.
    """
    running = list(scheduler.running)
    of_pool = [worker for worker in running if tag in worker.resources] if tag else running
    found = of_pool or running
    few = random.sample(found, COMPARED) if len(found) > COMPARED else found
    return [worker.address for worker in nlargest(NAMED, few, key=_free_memory)]


def _free_memory(worker: WorkerState) -> float:
    """Return the bytes that a worker may still use, as far as is known; infinite without a limit.

    A heartbeat may be older than the latest argument, and the process uses more than its results.
    """
    used = max(worker.nbytes, worker.metrics.get("memory", 0))
    return worker.memory_limit - used if worker.memory_limit else math.inf
