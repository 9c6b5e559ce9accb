"""The modules of the calls of a worker: their versions are fetched before a call begins."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from distributed import Worker

from scalable.protocol.code import CodeTable
from scalable.protocol.dask_seams.nodes import CarriedNode
from scalable.protocol.handlers import SchedulerCalls
from scalable.protocol.importing import here

logger = logging.getLogger("scalable.worker")


async def know_code_of(worker: Worker, task: Any) -> None:
    """Fetch the versions of the modules that a task needs, unless they are known.

    Parameters
    ----------
    worker
        Worker that is about to run the task.
    task
        State of the task on the worker, or None.
    """
    importer, node = here(), getattr(task, "run_spec", None)
    if importer is None or not isinstance(node, CarriedNode) or importer.knows(node.code):
        return
    calls = SchedulerCalls(worker.scheduler)
    try:
        message = await calls.code_table(node.code)
        if message is None:
            return
        table = CodeTable.from_message(message)
        missing = await asyncio.to_thread(importer.missing_sources, table)
        sources = await calls.sources(missing) if missing else {}
    except OSError as error:
        logger.warning("the modules of call %s are not known: %s", task.key, error)
        return
    logger.debug("code %s: %d sources are not in files here", node.code, len(missing))
    importer.add(table, sources)
