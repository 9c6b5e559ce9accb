"""A Dask client with a line to the scheduler for bundles, whose waiting calls lend their slots."""

from __future__ import annotations

import logging
from typing import Any

from scalable.client.scheduler_line import SchedulerLine
from scalable.protocol.dask_seams.client import (
    ReportingClient,
    add_stream_handlers,
    is_wait,
    seams,
)
from scalable.protocol.handlers import Handler
from scalable.protocol.lending import in_call, slot_lent, sync_in_call
from scalable.protocol.operations import BUNDLES
from scalable.scheduler.bundle_relay import BundleRelay


def _is_not_all_exit(record: logging.LogRecord) -> bool:
    """Return False for the records that asyncio makes of each call of an interrupted gather."""
    error = record.exc_info[0] if record.exc_info else None
    return error is None or error.__name__ != "AllExit"


logging.getLogger("asyncio").addFilter(_is_not_all_exit)
# It logs each connection that ends with unsent messages: usual at the end of a session.
logging.getLogger("distributed.batched").setLevel(logging.WARNING)


class BundleClient(ReportingClient):
    """A ``distributed.Client`` that passes Dask's events on to the executors' bundles.

    Parameters
    ----------
    *args, **kwargs
        As in ``distributed.Client``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seams.check()
        self._line = SchedulerLine(self)
        #: Whether the scheduler can interrupt calls that run; None before it was asked.
        self._can_interrupt: bool | None = None
        super().__init__(*args, **kwargs)
        add_stream_handlers(self, self._line.handlers())

    def sync(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a coroutine and wait. A call that waits for other calls lends its slot meanwhile."""
        if not is_wait(func) or self.asynchronous or not in_call():
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
        self._line.set_slots(self.ask(Handler.FOLLOW_SLOTS, client=self.id))

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Call an operation of the scheduler, and return its answer."""
        assert self.scheduler is not None
        return self.sync(getattr(self.scheduler, operation), **arguments)

    # Dask's events ------------------------------------------------------------------------------

    def known_tasks(self) -> list[Any]:
        """Return the keys of the bundles that were sent and have not ended."""
        return self._line.followed()

    def task_in_memory(self, key: Any) -> None:
        """Pass on the good end of a task."""
        self._line.task_in_memory(key)

    def task_erred(self, key: Any, error: BaseException) -> None:
        """Pass on the failure of a task."""
        self._line.task_erred(key, error)

    def task_lost(self, key: Any) -> None:
        """Pass on that the scheduler no longer knows a task."""
        self._line.task_lost(key)

    async def before_cancel(self, keys: list[Any]) -> None:
        """Interrupt the calls that run; those for which another client waits go on."""
        assert self.scheduler is not None
        if self._can_interrupt is None:
            self._can_interrupt = await self.scheduler.get_metadata(keys=[BUNDLES], default=False)
        if self._can_interrupt:
            for key in keys:
                self._line.interrupt(key)

    def before_close(self) -> None:
        """Fail the calls of executors that have not ended."""
        self._line.close()
