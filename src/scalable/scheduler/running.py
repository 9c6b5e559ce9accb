"""Tasks that run on a worker, according to the scheduler."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

from distributed.scheduler import TaskState, WorkerState


def running_tasks(worker: WorkerState) -> Iterator[tuple[TaskState, float]]:
    """Yield the tasks that run on a worker, each with its running time in seconds.
    Workers report their running tasks with each heartbeat. Other tasks sent to the worker are
    assumed to run, as many as it has free threads.
    """
    if not worker.processing:
        return
    since = max(0.0, time.time() - worker.last_seen)
    named = [task for task in worker.executing if task.processing_on is worker]
    for task in named:
        yield task, worker.executing[task] + since
    places = worker.nthreads - len(named)
    if places > 0 and len(worker.processing) > len(named):
        others = (task for task in worker.processing if task not in worker.executing)
        for task in islice(others, places):
            yield task, since / 2
