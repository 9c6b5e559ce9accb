"""Seams of moving results away from workers that leave."""

from __future__ import annotations

import random
from typing import Any

from distributed.active_memory_manager import ActiveMemoryManagerExtension, ReduceReplicas
from distributed.scheduler import TaskState, WorkerState

from scalable.dask_compat.facts import Seams, declares, mentions

seams = Seams("scheduler that moves results")

_MANAGER = "distributed.active_memory_manager:ActiveMemoryManagerExtension"
#: Maximum number of workers that are compared for one result.
COMPARED = 20


@seams.relies_on(
    declares(f"{_MANAGER}.run_once", "self"),
    declares(f"{_MANAGER}._find_recipient", "self", "ts", "candidates", "pending_repl"),
    mentions(f"{_MANAGER}._find_recipient", "scheduler", "running"),
    mentions(f"{_MANAGER}._run_policies", "_find_recipient", "policies"),
    mentions("distributed.active_memory_manager:ReduceReplicas.run", "replicated_tasks"),
    mentions("distributed.scheduler:Scheduler.retire_workers", "extensions", "amm"),
    optional=True,
)
class SamplingMemoryManager(ActiveMemoryManagerExtension):
    """Dask's Active Memory Manager, which moves a result to the emptiest of a sample.

    Dask compares all workers for each result: 2 ms with 5,000 workers, in one turn of the event
    loop for all results of the workers that leave. The emptiest of ``COMPARED`` random workers
    fills workers almost as evenly (Mitzenmacher, "The power of two choices in randomized load
    balancing", 2001).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Running workers, while the policies run.
        self._running: list[WorkerState] = []
        super().__init__(*args, **kwargs)

    def run_once(self) -> None:
        """Run all policies, unless the only one drops copies of results and there are none."""
        copies = self.scheduler.replicated_tasks
        if not copies and all(type(policy) is ReduceReplicas for policy in self.policies):
            return  # before Dask reads the memory of each worker
        self._running = list(self.scheduler.running)
        try:
            super().run_once()
        finally:
            self._running = []

    def _find_recipient(
        self,
        ts: TaskState,
        candidates: set[WorkerState] | None,
        pending_repl: set[WorkerState],
    ) -> WorkerState | None:
        if candidates is None and len(self._running) > COMPARED:
            few = set(random.sample(self._running, COMPARED))
            found = super()._find_recipient(ts, few, pending_repl)
            if found is not None:
                return found
        return super()._find_recipient(ts, candidates, pending_repl)
