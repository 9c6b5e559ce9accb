"""Reruns of failed tasks in the user's process, where a debugger can stop them."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from distributed import wait
from distributed.client import futures_of

from scalable.client.futures import CallFuture
from scalable.dask_compat.client import failed_task
from scalable.errors import ClusterError

_SCRIPT = "__main__"


def run_failed_task(client: Any, future: Any) -> Any:
    """Run in this thread the task that caused a future's failure, and return its result.
    Functions of the script come from this process, so that a debugger shows their source. Raises
    ClusterError if nothing has failed, or for an executor's future.
    """
    if isinstance(future, CallFuture):
        raise ClusterError(
            "tasks of executors are not kept, so they cannot run again here",
            hint="submit the task with client.submit()",
        )
    futures = futures_of(future)
    wait(futures)
    if not any(each.status == "error" for each in futures):
        raise ClusterError("no task of these futures has failed")
    node, inputs = failed_task(client, future)
    if hasattr(node, "func"):
        node = node.copy()
        node.func = own_function(node.func)
    return node(inputs)


def debug_failed_task(client: Any, future: Any) -> None:
    """Run a failed task in this thread, and open Python's debugger where it raises."""
    try:
        run_failed_task(client, future)
    except ClusterError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's task raises
        import pdb  # noqa: T100 - its import fails next to a script named cmd.py or code.py

        debugger = pdb.Pdb()
        debugger.message("".join(traceback.format_exception_only(error)).rstrip())
        debugger.reset()
        debugger.interaction(None, error.__traceback__)
    else:
        raise ClusterError("the task did not fail when it ran here")


def own_function(function: Any) -> Any:
    """Return this process's version of a script's function, or other functions unchanged."""
    if type(function).__module__.startswith("scalable."):  # a cached task
        function = getattr(function, "__wrapped__", function)
    if getattr(function, "__module__", None) != _SCRIPT:
        return function
    own: Any = sys.modules[_SCRIPT]
    for name in str(getattr(function, "__qualname__", "")).split("."):
        own = getattr(own, name, None)
    return function if own is None else own
