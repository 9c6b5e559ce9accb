"""Choice of the workers to which a large argument of a task is sent."""

from __future__ import annotations

import math
import random
from heapq import nlargest

from distributed import Scheduler
from distributed.scheduler import WorkerState

#: Largest number of workers compared, and of those returned: one may leave.
COMPARED, NAMED = 20, 3
#: Share of a worker's memory up to which it has space. Beyond it Dask spills results to disk.
ROOMY = 0.6


def upload_places(scheduler: Scheduler, tag: str, nbytes: int) -> list[str]:
    """Return addresses of workers with space for an argument of ``nbytes`` of a tag's tasks.
    They belong to the tag's pool, so that no other pool's memory is used, or to any while that has
    no workers. They are sampled, so that arguments, and the tasks that follow them, spread over the
    pool. Without space, those with the most free memory are returned.
    """
    running = list(scheduler.running)
    of_pool = [worker for worker in running if tag in worker.resources] if tag else running
    found = of_pool or running
    drawn = random.sample(found, min(COMPARED, len(found)))
    roomy = [worker for worker in drawn if _free_memory(worker, ROOMY) >= nbytes]
    places = roomy[:NAMED] or nlargest(NAMED, drawn, key=_free_memory)
    return [worker.address for worker in places]


def _free_memory(worker: WorkerState, share: float = 1.0) -> float:
    """Return the free bytes up to a share of a worker's limit, or infinity without a limit.
    The larger of two measures is subtracted: a heartbeat may be older than the latest argument, and
    the process uses more than its results.
    """
    used = max(worker.nbytes, worker.metrics.get("memory", 0))
    return share * worker.memory_limit - used if worker.memory_limit else math.inf
