"""`BundleClient`: a Dask client that sends bundles, and lends slots while tasks wait.

A *bundle* is a batch of tasks that is sent as one Dask task. A *slot* is the capacity for one task
on a worker. A task that waits for other tasks lends its slot to them.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

from dask.utils import key_split
from distributed.protocol.pickle import dumps, loads
from distributed.scheduler import KilledWorker

from scalable.client.carrying_client import CarryingClient
from scalable.client.explained_losses import with_reasons
from scalable.client.frames import leave_out_our_frames
from scalable.client.image_versions import compare_versions
from scalable.client.missing_packages import with_package
from scalable.client.news import News
from scalable.client.scheduler_line import SchedulerLine
from scalable.client.unsendable import unsendable_result
from scalable.errors import ClusterError
from scalable.protocol.code import in_image, missing_module
from scalable.protocol.dask_seams.client import (
    add_stream_handlers,
    is_wait,
    seams,
    waits_for_ended,
)
from scalable.protocol.dask_seams.shared_frames import share_memory
from scalable.protocol.handlers import Handler
from scalable.protocol.lending import Lender, in_call, slot_lent, take_lent_slot_back, wait_in_call
from scalable.protocol.operations import BUNDLES, VERSIONS
from scalable.protocol.restored_errors import restored
from scalable.protocol.versions import ImageVersions
from scalable.scheduler.bundle_relay import BundleRelay


def _is_not_all_exit(record: logging.LogRecord) -> bool:
    """Return False for log records of ``AllExit``, which asyncio makes if gather is interrupted."""
    error = record.exc_info[0] if record.exc_info else None
    return error is None or error.__name__ != "AllExit"


logger = logging.getLogger("scalable.client")
logging.getLogger("asyncio").addFilter(_is_not_all_exit)
# distributed.batched logs each connection that is closed with unsent messages, which is usual when
# a session is closed.
logging.getLogger("distributed.batched").setLevel(logging.WARNING)


class BundleClient(CarryingClient):
    """A ``distributed.Client`` that reports to executors what happens to their bundles.

    Parameters
    ----------
    *args, **kwargs
        As in ``distributed.Client``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seams.check()
        leave_out_our_frames()
        share_memory()
        self._line = SchedulerLine(self, self.code)
        self._news = News(self, lambda: self._line.lender is not None, self._end_all)
        #: Result of a query to the scheduler whether it can interrupt running tasks, or None before
        #: it.
        self._can_interrupt: bool | None = None
        super().__init__(*args, **kwargs)
        add_stream_handlers(self, self._line.handlers())
        self._news.subscribe()

    def sync(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a coroutine and wait. A task that waits for other tasks lends them its slot."""
        if not is_wait(func) or self.asynchronous or not in_call():
            return super().sync(func, *args, **kwargs)
        options = {name: kwargs.pop(name, None) for name in ("asynchronous", "callback_timeout")}
        ended = waits_for_ended(func)
        if ended:
            self._line.made_calls()  # if the result is lost, the wait may be long
            take_lent_slot_back()
        with nullcontext() if ended else slot_lent():
            if any(options.values()):
                return super().sync(func, *args, **options, **kwargs)
            return wait_in_call(self.loop, func, *args, **kwargs)

    def serve_calls_of(self, lender: Lender) -> None:
        """Mark the client as one that only the tasks of one worker use.

        Parameters
        ----------
        lender
            Lender of the worker's slots.
        """
        self._line.lender = lender

    async def close_at_once(self) -> None:
        """Close the client in the event loop, without waiting for the scheduler's answer."""
        await self._close(fast=True)

    def _follow_slots(self) -> None:
        """Ask the scheduler to report the slots of each tag, now and after each change."""
        if self._line.knows_slots:
            return
        if not self.ask("get_metadata", keys=[BUNDLES], default=False):
            # The scheduler was not started by scalable.
            self.register_plugin(BundleRelay())
        self._line.set_slots({})
        self._line.set_slots(self.ask(Handler.FOLLOW_SLOTS, client=self.id))

    async def reconnected(self) -> None:
        """Subscribe to slots and news again, since the scheduler has lost the subscriptions."""
        self._news.subscribe()
        if not self._line.knows_slots:
            return
        try:
            assert self.scheduler is not None
            follow = getattr(self.scheduler, Handler.FOLLOW_SLOTS)
            self._line.reconnected(await follow(client=self.id))
        except OSError as error:  # the connection broke again, and will be restored
            logger.debug("the slots of client %s are not followed: %r", self.id, error)

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Call an operation of the scheduler by its name, and return the answer."""
        self.check_open()
        assert self.scheduler is not None
        return self.sync(getattr(self.scheduler, operation), **arguments)

    def scheduler_known(self) -> None:
        """Compare the versions in the scheduler's image with those of this process."""
        compare_versions(self.scheduler_facts)

    def explained(self, error: Any) -> Any:
        """Return the error to show in place of a task's error."""
        restored(error)
        cause = getattr(error, "__cause__", None)
        if isinstance(error, RuntimeError) and isinstance(cause, ModuleNotFoundError):
            image = ImageVersions.from_message(self.scheduler_facts.get(VERSIONS) or ["", {}, ""])
            where = in_image("the scheduler", image.image)
            return with_package(missing_module(cause, "the graph of this call", where))
        return with_package(error)

    def unreadable(self, error: TypeError, keys: list[Any]) -> TypeError | None:
        """Return the error for a result that cannot be pickled, or None for other errors."""
        call = f"call {key_split(keys[0])!r}" if len(keys) == 1 else "a call"
        return unsendable_result(error, call)

    def explains_later(self, key: Any, exception: Any) -> bool:
        """Return whether an error reports lost workers without the reasons."""
        is_bundle = key in self._line.followed_keys
        return not is_bundle and isinstance(exception, bytes) and b"KilledWorker" in exception

    async def explained_later(self, key: Any, exception: Any) -> Any:
        """Return the error of a task whose workers were lost, with the reasons."""
        error = loads(exception)
        if not isinstance(error, KilledWorker):
            return exception
        return dumps(await with_reasons(self, error, key))

    def unfinished_calls(self) -> int:
        """Return the number of tasks that wait or run, including those of executors."""
        bundles = self._line.followed_keys
        futures = list(self.futures.items())
        pending: int = sum(f.status == "pending" for key, f in futures if key not in bundles)
        return pending + self._line.unfinished_calls

    # Dask's events ------------------------------------------------------------------------------

    def known_tasks(self) -> list[Any]:
        """Return the keys of the bundles that were sent and have not finished."""
        return self._line.followed()

    def task_in_memory(self, key: Any) -> None:
        """Notify the executor of a bundle that the bundle's Dask task has succeeded."""
        self._line.task_in_memory(key)

    def task_erred(self, key: Any, error: BaseException) -> None:
        """Notify the executor of a bundle that the bundle's Dask task has failed."""
        self._line.task_erred(key, error)

    def task_lost(self, key: Any, *, with_all: bool) -> None:
        """Notify the executor of a bundle that the scheduler no longer has its Dask task."""
        self._line.task_lost(key, with_all=with_all)

    async def before_cancel(self, keys: list[Any]) -> None:
        """Ask the scheduler to interrupt running tasks, except those another client waits for."""
        assert self.scheduler is not None
        if self._can_interrupt is None:
            self._can_interrupt = await self.scheduler.get_metadata(keys=[BUNDLES], default=False)
        if self._can_interrupt:
            for key in keys:
                self._line.interrupt(key)

    def _end_all(self, error: ClusterError) -> None:
        """Fail all unfinished tasks and all later ones, because the cluster stops."""
        self._line.close(error)
        self.end_all(error)

    def before_close(self) -> None:
        """Fail all unfinished tasks of this client's executors."""
        self._line.close()
