"""A Dask client with a line to the scheduler for bundles, whose waiting calls lend their slots."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from distributed import Client
from distributed.client import futures_of

from scalable.client.scheduler_line import SchedulerLine
from scalable.protocol.lending import in_call, slot_lent, sync_in_call
from scalable.protocol.operations import BUNDLES
from scalable.scheduler.bundle_relay import BundleRelay

#: Dask's coroutines that end when calls do.
_WAITS = frozenset({"_gather", "_result", "_exception", "_traceback", "_wait"})


def _is_not_all_exit(record: logging.LogRecord) -> bool:
    """Return False for the records that asyncio makes of each call of an interrupted gather."""
    error = record.exc_info[0] if record.exc_info else None
    return error is None or error.__name__ != "AllExit"


logging.getLogger("asyncio").addFilter(_is_not_all_exit)
# It logs each connection that ends with unsent messages: usual at the end of a session.
logging.getLogger("distributed.batched").setLevel(logging.WARNING)


class BundleClient(Client):
    """A ``distributed.Client`` that passes Dask's events on to the executors' bundles.

    Parameters
    ----------
    *args, **kwargs
        As in ``distributed.Client``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._line = SchedulerLine(self)
        #: Whether the scheduler can interrupt calls that run; None before it was asked.
        self._can_interrupt: bool | None = None
        super().__init__(*args, **kwargs)
        self._stream_handlers |= self._line.handlers()

    def sync(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a coroutine and wait. A call that waits for other calls lends its slot meanwhile."""
        waits = getattr(func, "__name__", "") in _WAITS
        if not waits or self.asynchronous or not in_call():
            return super().sync(func, *args, **kwargs)
        options = {name: kwargs.pop(name, None) for name in ("asynchronous", "callback_timeout")}
        with slot_lent():
            if any(options.values()):
                return super().sync(func, *args, **options, **kwargs)
            return sync_in_call(self.loop, func, *args, **kwargs)

    def _follow_slots(self) -> None:
        """Have the scheduler send the slots of each tag whenever they change."""
        if self._line.knows_slots:
            return
        if not self.ask("get_metadata", keys=[BUNDLES], default=False):
            # The scheduler was not started by scalable.
            self.register_plugin(BundleRelay())
        self._line.set_slots({})
        self._line.set_slots(self.ask("scalable_follow_slots", client=self.id))

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Call an operation of the scheduler, and return its answer."""
        assert self.scheduler is not None
        return self.sync(getattr(self.scheduler, operation), **arguments)

    # Dask's events ------------------------------------------------------------------------------

    async def _cancel(self, futures: Any, *args: Any, **kwargs: Any) -> None:
        """Cancel calls; one that runs is interrupted unless another client waits for it."""
        assert self.scheduler is not None
        if self._can_interrupt is None:
            self._can_interrupt = await self.scheduler.get_metadata(keys=[BUNDLES], default=False)
        if self._can_interrupt:
            for future in futures_of(futures):
                self._line.interrupt(future.key)
        await super()._cancel(futures, *args, **kwargs)

    async def _close(self, *args: Any, **kwargs: Any) -> None:
        """Close the client, and fail the calls of its executors that have not ended."""
        self._line.close()
        await super()._close(*args, **kwargs)

    def _handle_cancelled_keys(self, keys: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        super()._handle_cancelled_keys(keys, *args, **kwargs)
        for key in keys:
            self._line.task_lost(key)

    def _handle_restart(self) -> None:
        super()._handle_restart()
        for key in self._line.followed():
            self._line.task_lost(key)

    async def _reconnect(self) -> None:
        followed = self._line.followed()  # Dask forgets its futures while it reconnects
        await super()._reconnect()
        for key in followed:
            self._line.task_lost(key)

    def _handle_key_in_memory(
        self,
        key: Any = None,
        type: Any = None,  # noqa: A002 - Dask's name
        workers: Any = None,
    ) -> None:
        super()._handle_key_in_memory(key, type, workers)
        self._line.task_in_memory(key)

    def _handle_task_erred(
        self, key: Any = None, exception: Any = None, traceback: Any = None
    ) -> None:
        super()._handle_task_erred(key, exception, traceback)
        if key in self.futures:
            self._line.task_erred(key, self.futures[key].exception)
