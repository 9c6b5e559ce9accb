"""Connection of a client's executors to the scheduler: bundles, slots and waiting tasks.

A *bundle* is a batch of tasks that is sent as one Dask task. A *slot* is the capacity for one task
on a worker.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dask import annotate  # type: ignore[attr-defined]
from dask.sizeof import sizeof
from dask.utils import key_split
from distributed import Client, Future, Scheduler
from distributed.scheduler import KilledWorker
from distributed.utils import in_async_call

from scalable.client.failures import refuse_unsendable
from scalable.client.task_output import display
from scalable.dask_compat.client import (
    facts_of,
    gather,
    send_to_scheduler,
    submitted_by,
    why_closed,
)
from scalable.errors import ClusterError
from scalable.protocol.failures import LostWorkers, OutOfMemory, WalltimeReached
from scalable.protocol.handlers import Handler, LossReason, request
from scalable.protocol.lending import Lender, made_calls
from scalable.protocol.messages import Pickled, Reference
from scalable.protocol.operations import (
    BACKLOG,
    BEGUN,
    BUNDLES,
    ENDING_TOPIC,
    INTERRUPT,
    OUTCOMES,
    PRINTED,
    RETURNED,
    SLOTS,
    WAITING_TOPIC,
    WIRE,
)
from scalable.protocol.task_output import STDOUT
from scalable.scheduler.bundle_relay import BundleRelay

logger = logging.getLogger("scalable.client")

#: Seconds to wait before each repeated attempt to upload an object.
UPLOAD_PAUSES_S = (0.1, 0.5, 2.0)
#: Seconds for which Dask waits for workers that have left, or take no work, since their choice.
PLACE_TIMEOUT_S = 2.0


class ExecutorConnection:
    """Connection of one client's executors to the scheduler."""

    def __init__(
        self,
        client: Client,
        code: Callable[[], str] = str,
        end: Callable[[ClusterError], None] = lambda _: None,
    ) -> None:
        # ``code`` returns the id of the code that tasks run (:mod:`scalable.protocol.code`), or "".
        # ``end`` is called once with the error of all tasks if the cluster starts to stop.
        self._client, self.code, self._end, self._ends = client, code, end, False
        self._slots: dict[str, int] | None = None
        self._slot_followers: weakref.WeakSet[Any] = weakref.WeakSet()
        #: The `Dispatcher` of each sent bundle that was not passed to :meth:`forget_bundle`.
        self.followers: dict[str, Any] = {}
        #: Whether the scheduler can interrupt running tasks, or None before it was queried.
        self._can_interrupt: bool | None = None
        #: The client shows the output of all tasks.
        self.shows_output = False
        #: Lender of the worker whose tasks alone use the client, or None for other clients.
        self.lender: Lender | None = None

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of the messages from the scheduler, by operation."""
        return {
            OUTCOMES: self.passed_on("outcomes"),
            RETURNED: self.passed_on("returned"),
            BEGUN: self.passed_on("begun"),
            PRINTED: _print,
            SLOTS: self.set_slots,
        }

    # Notifications ------------------------------------------------------------------------------

    def subscribe(self) -> None:
        """Subscribe to the scheduler's notifications. A new connection has to subscribe again."""
        if not isinstance(getattr(self._client.cluster, "scheduler", None), Scheduler):
            self._client.subscribe_topic(WAITING_TOPIC, self._waiting)
            self._client.subscribe_topic(ENDING_TOPIC, self._ending)

    def _waiting(self, event: tuple[float, Any]) -> None:
        clients, words = event[1]["clients"], event[1]["words"]
        if self.lender is None and (not clients or self._client.id in clients):
            logger.warning("%s", words)

    def _ending(self, event: tuple[float, Any]) -> None:
        if self.lender is not None or self._ends:
            return
        self._ends = True
        name, reason = event[1]["name"], event[1]["reason"]
        error = ClusterError(
            f"{f'cluster {name!r}' if name else 'the cluster'} has stopped: {reason}",
            hint="start a cluster, and submit the tasks again",
        )
        logger.warning("%s", error.message)
        self.close(error)
        self._end(error)

    # The client and its event loop --------------------------------------------------------------

    @property
    def client_id(self) -> str:
        return str(self._client.id)

    @property
    def in_event_loop(self) -> bool:
        """True if the current thread runs the client's event loop, and so must not wait."""
        return bool(in_async_call(self._client.loop))

    @property
    def why_closed(self) -> str:
        """Reason why the client takes no more tasks."""
        return why_closed(self._client)

    def call_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Schedule a function in the client's event loop. May be called from any thread."""
        assert self._client.loop is not None
        self._client.loop.add_callback(function, *args)

    def call_later(self, seconds: float, function: Callable[..., Any]) -> None:
        """Schedule a function after some seconds. May be called in the client's event loop only."""
        assert self._client.loop is not None
        self._client.loop.call_later(seconds, function)

    def made_calls(self) -> Any:
        """Record that this thread's task has submitted tasks. Return that task's key, or None."""
        owned = self.lender is not None and not self.in_event_loop
        return made_calls(self.lender if owned else None)

    # Slots and backlog --------------------------------------------------------------------------

    def follow_slots(self, follower: Any) -> None:
        """Register a `Dispatcher` to wake when slot counts change, and to close with the client."""
        self._slot_followers.add(follower)

    def set_slots(self, slots: dict[str, int]) -> None:
        """Store the number of slots of each tag as counted by the scheduler. Wake all followers."""
        logger.debug("slots of the connected workers by tag: %s", slots)
        self._slots = slots
        for follower in list(self._slot_followers):
            follower.wake()

    def request_slots(self) -> None:
        """Ask the scheduler to report the slots of each tag, now and after each change."""
        if self._slots is not None:
            return
        if not self.wait_for(self._interrupts):  # the scheduler was not started by scalable
            self._client.register_plugin(BundleRelay())
        self.set_slots({})
        self.set_slots(self.wait_for(self._follow))

    async def _interrupts(self) -> bool:
        """Return whether the scheduler passes on messages about bundles and interruptions."""
        scheduler: Any = self._client.scheduler
        return bool(await scheduler.get_metadata(keys=[BUNDLES], default=False))

    async def _follow(self) -> dict[str, int]:
        follow = getattr(self._client.scheduler, Handler.FOLLOW_SLOTS)
        slots: dict[str, int] = await follow(client=self._client.id)
        return slots

    async def reconnected(self) -> None:
        """Request the slots again, and report the waiting tasks again."""
        if self._slots is None:
            return
        try:
            slots = await self._follow()
        except OSError as error:  # the connection broke again, and will be restored
            logger.debug("could not resume the reports of slots for %s: %r", self.client_id, error)
            return
        for follower in list(self._slot_followers):
            follower.report_again()
        self.set_slots(slots)

    def slots_of(self, tag: str) -> int:
        """Return the number of slots of all workers with a tag, or of all workers for ``""``."""
        return (self._slots or {}).get(tag, 0)

    def report_backlog(self, executor: str, tag: str, task: str, slots: int) -> None:
        """Report to the scheduler how many slots the waiting tasks of an executor need."""
        if self._client.status == "running":
            about = {"executor": executor, "tag": tag, "task": task, "slots": slots}
            send_to_scheduler(self._client, {"op": BACKLOG, **about})

    @property
    def unfinished_calls(self) -> int:
        """Number of tasks of all executors that wait or run."""
        return sum(follower.unfinished for follower in list(self._slot_followers))

    def close(self, error: BaseException | None = None) -> None:
        """Fail all tasks of all executors that have not finished, and accept no others."""
        for follower in list(self._slot_followers):
            follower.close(error)

    # Bundles ------------------------------------------------------------------------------------

    def submit_bundle(
        self,
        key: str,
        follower: Any,
        call: tuple[Any, ...],
        *,
        annotations: Mapping[str, Any],
        resources: dict[str, float] | None,
        parent: Any = None,
    ) -> Future[Any]:
        """Submit a bundle as one Dask task. ``parent`` is the submitting task's key, or None."""
        self.followers[key] = follower
        function, *args = call
        with annotate(**annotations), submitted_by(parent):
            # Not ``self._client.submit``, which would route the bundle by tag a second time.
            return Client.submit(
                self._client, function, *args, key=key, pure=False, resources=resources
            )

    def forget_bundle(self, key: str) -> None:
        """Stop passing on the messages about a bundle."""
        self.followers.pop(key, None)

    def interrupt(self, key: Any, number: int | None = None) -> None:
        """Interrupt a task of a bundle by position, a single task (None) or ``EVERY`` task."""
        logger.debug("requesting the scheduler to interrupt %s (task %s)", key, number)
        send_to_scheduler(self._client, {"op": INTERRUPT, "key": key, "number": number})

    async def interrupt_each(self, keys: Iterable[Any]) -> None:
        """Interrupt single tasks, except those that another client waits for, if possible."""
        if self._can_interrupt is None:
            self._can_interrupt = await self._interrupts()
        if self._can_interrupt:
            for key in keys:
                self.interrupt(key)

    async def fetch(self, future: Future[Any]) -> Any:
        """Return the result of one of the client's futures. Runs in the client's event loop."""
        (result,) = await gather(self._client, [future], direct=is_near(self._client))
        return result

    async def with_reasons(self, error: KilledWorker, key: Any) -> KilledWorker:
        """Return a lost task's error with the reasons why its workers were lost."""
        if isinstance(error, OutOfMemory | LostWorkers | WalltimeReached):
            return error
        if not facts_of(self._client).get(WIRE):
            return error
        lost = str(getattr(error.last_worker, "name", ""))
        try:
            asked = {"key": key, "workers": [lost] if lost else []}
            rows = await request(self._client.scheduler, Handler.REASONS_OF_LOSS, **asked)
        except (OSError, TimeoutError) as problem:
            logger.debug("could not find out why %s was lost: %r", key, problem)
            return error
        reasons = [LossReason(*row) for row in rows]
        name = error.task if error.task != key else key_split(key)
        last, allowed = error.last_worker, error.allowed_failures
        if reasons and all(known.memory for known in reasons):
            final = reasons[-1]
            return OutOfMemory(name, last, allowed, final.memory, final.memory, final.component, 0)
        return LostWorkers(name, last, allowed, *((known.name, known.reason) for known in reasons))

    def upload(self, value: Any, tag: str = "") -> Future[Any]:
        """Upload an object to a worker with the tag, or to any worker, and return its future.
        Raises TypeError if the object cannot be pickled and the workers are other processes.
        """
        others = not getattr(self._client.scheduler, "address", "").startswith("inproc")
        if others and not isinstance(value, Pickled):
            refuse_unsendable(value)
        return self.wait_for(self._scattered, value, tag)  # type: ignore[no-any-return]

    async def upload_again(self, reference: Reference, tag: str = "") -> None:
        """Upload the object of a reference again. Runs in the client's event loop."""
        reference.future = await self._scattered(reference.value, tag)

    async def _scattered(self, value: Any, tag: str) -> Future[Any]:
        """Upload an object to a worker with a tag, and again to another if the worker leaves."""
        pauses = iter(UPLOAD_PAUSES_S)
        while True:
            try:
                (future,) = await self._client.scatter(
                    [value],
                    **await self._places_for(value, tag),
                    hash=False,
                    direct=is_near(self._client),
                    asynchronous=True,
                )
            except (KeyError, OSError) as error:  # KeyError: the scheduler no longer has it
                pause = next(pauses, None)
                if pause is None:
                    raise
                logger.debug("an upload failed and is repeated in %g s: %r", pause, error)
                await asyncio.sleep(pause)
            else:
                return future  # type: ignore[no-any-return]

    async def _places_for(self, value: Any, tag: str) -> dict[str, Any]:
        """Return Dask options that restrict an upload to some workers. Empty means any worker."""
        if self._slots is None:  # the scheduler may be one without our plugins
            return {}
        asked = {"tag": tag, "nbytes": int(sizeof(value))}
        places = await request(self._client.scheduler, Handler.UPLOAD_PLACES, **asked)
        return {"workers": places, "timeout": PLACE_TIMEOUT_S} if places else {}

    def wait_for(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a coroutine function in the client's event loop, and return its result."""
        return self._client.sync(function, *args)

    # Messages about bundles, and news of their Dask tasks from the client ------------------------

    def passed_on(self, event: str) -> Callable[..., None]:
        """Return a function that passes an event to the follower of the event's bundle."""

        def handle(key: str, *details: Any, **message: Any) -> None:
            follower = self.followers.get(key)
            if follower is None:
                return
            try:
                getattr(follower, event)(key, *details, **message)
            except Exception as error:
                # Otherwise the tasks would never finish: no other message about them arrives.
                follower.erred(key, error)
                raise

        return handle


def _print(key: str, text: str, **_: Any) -> None:
    """Print a remote task's output in this process."""
    del key
    display.show(STDOUT, text)


def is_near(client: Client) -> bool | None:
    """Return True if the workers can be reached directly, or None to let Dask decide."""
    # Only a scheduler on the loopback address is certainly near. A tunnel to another scheduler
    # starts there too, but is not the scheduler's own address.
    address = getattr(client.scheduler, "address", "")
    if "://127." not in address:
        return None
    # The client is in its event loop: this does not contact the scheduler.
    return True if client.scheduler_info().get("address") == address else None
