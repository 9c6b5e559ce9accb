"""The line between the executors of a client and the scheduler: bundles, slots and the backlog."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dask import annotate  # type: ignore[attr-defined]
from distributed import Client, Future
from distributed.utils import in_async_call

from scalable.errors import ClusterError
from scalable.protocol.dask_seams.client import gather, send_to_scheduler
from scalable.protocol.operations import (
    BACKLOG,
    BEGUN,
    INTERRUPT,
    OUTCOMES,
    PRINTED,
    RETURNED,
    SLOTS,
    TIMED_OUT,
)

logger = logging.getLogger("scalable.client")


class BundleFollower(Protocol):
    """Receiver of the messages about bundles; its methods run in the client's event loop."""

    def outcomes(self, key: str, outcomes: bytes, busy_s: float, *, over: bool) -> None:
        """Handle calls of a bundle that have ended."""

    def returned(self, key: str, numbers: Sequence[int] | int) -> None:
        """Handle calls that a worker gives back because it has not begun them."""

    def timed_out(self, key: str, number: int) -> None:
        """Handle a call that ran for longer than its limit."""

    def begun(self, key: str) -> None:
        """Handle the start notice of a bundle."""

    def in_memory(self, key: str) -> None:
        """Handle the end of a bundle's Dask task."""

    def erred(self, key: str, error: BaseException) -> None:
        """Handle the failure of a bundle as a whole."""

    def lost(self, key: str) -> None:
        """Handle the loss of a bundle's Dask task."""


class SlotFollower(Protocol):
    """An object that sends calls when slots become free."""

    def wake(self) -> None:
        """Look for calls to send, soon; called from any thread."""

    def close(self) -> None:
        """Fail all calls that have not ended: the client is closed."""


class SchedulerLine:
    """Connection of the executors of one client to the scheduler.

    The line sends bundles and messages, passes the answers to the follower of each bundle, and
    knows how many slots each tag has.

    Parameters
    ----------
    client
        The Dask client whose connection and event loop are used.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._slots: dict[str, int] | None = None
        self._slot_followers: weakref.WeakSet[SlotFollower] = weakref.WeakSet()
        self._followers: dict[str, BundleFollower] = {}

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of the messages from the scheduler, by operation."""
        return {
            OUTCOMES: self._passed_on("outcomes"),
            RETURNED: self._passed_on("returned"),
            TIMED_OUT: self._passed_on("timed_out"),
            BEGUN: self._passed_on("begun"),
            PRINTED: _print,
            SLOTS: self.set_slots,
        }

    # The client and its event loop --------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """Name under which the scheduler knows the client."""
        return str(self._client.id)

    @property
    def in_event_loop(self) -> bool:
        """Whether the current thread runs the client's event loop, and so must not wait."""
        return bool(in_async_call(self._client.loop))

    def call_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function in the event loop, soon; from any thread."""
        assert self._client.loop is not None
        self._client.loop.add_callback(function, *args)

    def call_later(self, seconds: float, function: Callable[..., Any]) -> None:
        """Call a function in the event loop, after some seconds; from the event loop only."""
        assert self._client.loop is not None
        self._client.loop.call_later(seconds, function)

    # Slots and backlog --------------------------------------------------------------------------

    @property
    def knows_slots(self) -> bool:
        """Whether the scheduler has been asked for the slots of each tag."""
        return self._slots is not None

    def follow_slots(self, follower: SlotFollower) -> None:
        """Wake an object whenever the slots change, and close it with the client."""
        self._slot_followers.add(follower)

    def set_slots(self, slots: dict[str, int]) -> None:
        """Store the slots of each tag, as the scheduler counts them."""
        logger.debug("slots of the connected workers by tag: %s", slots)
        self._slots = slots
        for follower in list(self._slot_followers):
            follower.wake()

    def slots_of(self, tag: str) -> int:
        """Return the slots of the connected workers of a tag, or of all workers for ``""``."""
        return (self._slots or {}).get(tag, 0)

    def report_backlog(self, executor: str, tag: str, task: str, slots: int) -> None:
        """Tell the scheduler how many slots the calls that wait in an executor take.

        Parameters
        ----------
        executor
            Identifier of the executor.
        tag, task
            Tag and task name of the calls.
        slots
            Number of slots.
        """
        if self._client.status == "running":
            about = {"executor": executor, "tag": tag, "task": task, "slots": slots}
            self._send({"op": BACKLOG, **about})

    def close(self) -> None:
        """Fail all calls of all executors that have not ended."""
        for follower in list(self._slot_followers):
            follower.close()

    # Bundles ------------------------------------------------------------------------------------

    @property
    def bundles(self) -> int:
        """Number of bundles that are followed."""
        return len(self._followers)

    def submit_bundle(
        self,
        key: str,
        follower: BundleFollower,
        call: tuple[Any, ...],
        *,
        annotations: Mapping[str, Any],
        resources: dict[str, float] | None,
    ) -> Future[Any]:
        """Submit a bundle as one Dask task.

        Parameters
        ----------
        key
            Key of the task.
        follower
            Receiver of the messages about the bundle.
        call
            Function and arguments.
        annotations, resources
            Dask's annotations and resources of the task.
        """
        self._followers[key] = follower
        function, *args = call
        with annotate(**annotations):
            # Not the method of a subclass: the calls of a bundle are routed already.
            return Client.submit(
                self._client, function, *args, key=key, pure=False, resources=resources
            )

    def forget_bundle(self, key: str) -> None:
        """Stop following a bundle."""
        self._followers.pop(key, None)

    def interrupt(self, key: Any, number: int | None = None) -> None:
        """End a running call.

        Parameters
        ----------
        key
            Key of the Dask task.
        number
            Position of the call in its bundle; None where the task is not a bundle.
        """
        logger.debug("the scheduler is asked to interrupt %s (call %s)", key, number)
        self._send({"op": INTERRUPT, "key": key, "number": number})

    async def fetch(self, future: Future[Any]) -> Any:
        """Fetch the result of a future of the client, in its event loop."""
        (result,) = await gather(self._client, [future], direct=self._is_near())
        return result

    def upload(self, value: Any) -> Future[Any]:
        """Upload an object to the cluster; the future stands for it in arguments."""
        (future,) = self._client.scatter([value], hash=False, direct=self._is_near())
        return future  # type: ignore[no-any-return]

    def _is_near(self) -> bool | None:
        """Return True where the workers can be reached directly; None where Dask is to decide.

        Direct connections are certain only where all of the cluster listens on this machine alone.
        """
        address = getattr(self._client.scheduler, "address", "")
        return True if "://127." in address else None

    def _send(self, message: dict[str, Any]) -> None:
        send_to_scheduler(self._client, message)

    # News of Dask tasks, from the client --------------------------------------------------------

    def followed(self) -> list[str]:
        """Return the keys of the bundles that are followed."""
        return list(self._followers)

    def task_in_memory(self, key: Any) -> None:
        """Pass on that a Dask task has ended well."""
        if key in self._followers:
            self._followers[key].in_memory(key)

    def task_erred(self, key: Any, error: BaseException) -> None:
        """Pass on that a Dask task has failed."""
        if key in self._followers:
            self._followers[key].erred(key, error)

    def task_lost(self, key: Any) -> None:
        """Pass on that the scheduler no longer knows a Dask task."""
        if key not in self._followers:
            return
        logger.debug("bundle %s is unknown to the scheduler", key)
        self._followers[key].lost(key)
        if key in self._followers:
            error = ClusterError(
                "the call was lost: the cluster was restarted, or lost an object that was sent",
                hint="send large objects again, and make the call again",
            )
            self._followers[key].erred(key, error)

    def _passed_on(self, event: str) -> Callable[..., None]:
        """Return a handler that passes a message on to the follower of its bundle."""

        def handle(key: str, **message: Any) -> None:
            follower = self._followers.get(key)
            if follower is None:
                return
            try:
                getattr(follower, event)(key, **message)
            except Exception as error:
                # The calls would never end otherwise: nothing more is heard of them.
                follower.erred(key, error)
                raise

        return handle


def _print(key: str, text: str, **_: Any) -> None:
    """Show the output of a call."""
    del key
    sys.stdout.write(text)
    sys.stdout.flush()
