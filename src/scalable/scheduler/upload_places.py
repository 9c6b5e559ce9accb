"""Choice of the workers to which a large argument of a call is sent."""

from __future__ import annotations

import math
import random
from heapq import nlargest

from distributed import Scheduler
from distributed.scheduler import WorkerState

#: Largest number of workers that are compared, and of those that are named: one may leave.
COMPARED, NAMED = 20, 3
#: Share of a worker's memory up to which it has room: from there on Dask moves results to the disk.
ROOMY = 0.6


def upload_places(scheduler: Scheduler, tag: str, nbytes: int) -> list[str]:
    """Return the addresses of workers that may get an argument of calls of a tag.

    They are workers of the calls' own pool, so that the argument counts for the memory of no other
    pool; any workers while the pool has none. They are drawn from those that have room, so that
    arguments spread over the pool, as calls go to where their arguments are. If none of those that
    are compared has room, they have the most free memory.

    Parameters
    ----------
    scheduler
        The scheduler.
    tag
        Tag of the calls; empty for calls that run on any worker.
    nbytes
        Size of the argument in bytes.
    """
    running = list(scheduler.running)
    of_pool = [worker for worker in running if tag in worker.resources] if tag else running
    found = of_pool or running
    drawn = random.sample(found, min(COMPARED, len(found)))
    roomy = [worker for worker in drawn if _free_memory(worker, ROOMY) >= nbytes]
    places = roomy[:NAMED] or nlargest(NAMED, drawn, key=_free_memory)
    return [worker.address for worker in places]


def _free_memory(worker: WorkerState, share: float = 1.0) -> float:
    """Return the bytes that a worker may use up to a share of its limit; infinite without a limit.

    A heartbeat may be older than the latest argument, and the process uses more than its results.
    """
    used = max(worker.nbytes, worker.metrics.get("memory", 0))
    return share * worker.memory_limit - used if worker.memory_limit else math.inf
