"""Arguments of a worker's tasks, fetched with the modules of the tasks that wait for them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from distributed import Worker

from scalable.protocol.code import missing_module
from scalable.protocol.dask_seams.arguments import (
    drop_idle_connections,
    fail_waiting_call,
    fetched,
    unreadable,
    waiting_calls,
    with_data,
)
from scalable.protocol.dask_seams.nodes import CarriedNode
from scalable.protocol.importing import here

logger = logging.getLogger("scalable.worker")

#: Fetches the values of some keys. The result is an event of Dask's worker.
Fetch = Callable[[Collection[Any]], Awaitable[Any]]
#: Fetches the code of a task, given its state on the worker.
Know = Callable[[Any], Awaitable[None]]


async def fetch_arguments(
    worker: Worker, source: str, keys: Collection[Any], fetch: Fetch, know: Know
) -> Any:
    """Fetch arguments of tasks from another worker. Tasks with unreadable arguments fail."""
    await _use_code_of_calls(worker, keys, know)
    event = await fetch(keys)
    if unreadable(event) is None:
        return event
    drop_idle_connections(worker, source)
    if len(keys) == 1:
        _fail_calls(worker, next(iter(keys)), event)
        return event
    data: dict[Any, Any] = {}
    read = None
    for key in keys:  # one that cannot be unpickled does not affect the others
        one = await fetch([key])
        values = fetched(one)
        if values is not None:
            data.update(values)
            read = one
        elif unreadable(one) is not None:
            drop_idle_connections(worker, source)
            _fail_calls(worker, key, one)
        else:  # the other worker is busy, or gone: Dask fetches all keys again
            return one
    return event if read is None else with_data(read, data)


async def _use_code_of_calls(worker: Worker, keys: Collection[Any], know: Know) -> None:
    """Use the code of the tasks that wait for any of these keys, before the keys are unpickled."""
    importer = here()
    if importer is None:
        return
    for call in waiting_calls(worker, keys):
        await know(call)
        if isinstance(call.run_spec, CarriedNode):
            importer.use(call.run_spec.code)


def _fail_calls(worker: Worker, key: Any, event: Any) -> None:
    """Fail the tasks that wait for an argument which cannot be unpickled."""
    error = unreadable(event)
    importer = here()
    name = f"worker {worker.name}" if importer is None else importer.name
    for call in waiting_calls(worker, [key]):
        shown = getattr(call.run_spec, "shown", str(call.key))
        if isinstance(error, ModuleNotFoundError):
            told: Exception = missing_module(error, f"an argument of call {shown!r}", name)
        else:
            told = RuntimeError(
                f"Argument {key!r} of call {shown!r} cannot be unpickled on {name}: {error!r}. "
                "Its class has to be importable there, and has to accept what was pickled."
            )
        logger.debug("call %s fails: argument %s: %r", call.key, key, error)
        fail_waiting_call(worker, call, told)
