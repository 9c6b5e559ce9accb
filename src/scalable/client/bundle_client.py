"""`BundleClient`: a Dask client that sends bundles, and lends slots while calls wait.

A *bundle* is a batch of calls that is sent as one Dask task. A *slot* is room for one call on a
worker. A call that waits for other calls lends its slot to them.
"""

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
    """Return False for log records of ``AllExit``, which asyncio makes if gather is interrupted."""
    error = record.exc_info[0] if record.exc_info else None
    return error is None or error.__name__ != "AllExit"


logging.getLogger("asyncio").addFilter(_is_not_all_exit)
# distributed.batched logs each connection that is closed with unsent messages, which is usual at
# the end of a session.
logging.getLogger("distributed.batched").setLevel(logging.WARNING)


class BundleClient(ReportingClient):
    """A ``distributed.Client`` that tells executors what happens to their bundles.

    Parameters
    ----------
    *args, **kwargs
        As in ``distributed.Client``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seams.check()
        self._line = SchedulerLine(self)
        #: Whether the scheduler can interrupt running calls; None until the scheduler was asked.
        self._can_interrupt: bool | None = None
        super().__init__(*args, **kwargs)
        add_stream_handlers(self, self._line.handlers())

    def sync(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a coroutine and wait. A call that waits for other calls lends them its slot."""
        if not is_wait(func) or self.asynchronous or not in_call():
            return super().sync(func, *args, **kwargs)
        options = {name: kwargs.pop(name, None) for name in ("asynchronous", "callback_timeout")}
        with slot_lent():
            if any(options.values()):
                return super().sync(func, *args, **options, **kwargs)
            return sync_in_call(self.loop, func, *args, **kwargs)

    def _follow_slots(self) -> None:
        """Ask the scheduler to report the slots of each tag, now and after each change."""
        if self._line.knows_slots:
            return
        if not self.ask("get_metadata", keys=[BUNDLES], default=False):
            # The scheduler was not started by scalable.
            self.register_plugin(BundleRelay())
        self._line.set_slots({})
        self._line.set_slots(self.ask(Handler.FOLLOW_SLOTS, client=self.id))

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Call an operation of the scheduler by its name, and return the answer."""
        assert self.scheduler is not None
        return self.sync(getattr(self.scheduler, operation), **arguments)

    # Dask's events ------------------------------------------------------------------------------

    def known_tasks(self) -> list[Any]:
        """Return the keys of the bundles that were sent and have not ended."""
        return self._line.followed()

    def task_in_memory(self, key: Any) -> None:
        """Tell the executor that sent a bundle that the bundle's Dask task has succeeded."""
        self._line.task_in_memory(key)

    def task_erred(self, key: Any, error: BaseException) -> None:
        """Tell the executor that sent a bundle that the bundle's Dask task has failed."""
        self._line.task_erred(key, error)

    def task_lost(self, key: Any) -> None:
        """Tell the executor that sent a bundle that the scheduler no longer knows its Dask task."""
        self._line.task_lost(key)

    async def before_cancel(self, keys: list[Any]) -> None:
        """Ask the scheduler to interrupt running calls, except those another client waits for."""
        assert self.scheduler is not None
        if self._can_interrupt is None:
            self._can_interrupt = await self.scheduler.get_metadata(keys=[BUNDLES], default=False)
        if self._can_interrupt:
            for key in keys:
                self._line.interrupt(key)

    def before_close(self) -> None:
        """Fail all unfinished calls of this client's executors."""
        self._line.close()
