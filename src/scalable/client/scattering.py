"""Upload of an object to a worker, where tasks find it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from dask.sizeof import sizeof
from distributed import Client, Future

from scalable.protocol.handlers import SchedulerCalls

logger = logging.getLogger("scalable.client")

#: Seconds to wait before each repeated attempt to upload an object.
UPLOAD_PAUSES_S = (0.1, 0.5, 2.0)
#: Seconds for which Dask waits for workers that have left, or take no work, since their choice.
PLACE_TIMEOUT_S = 2.0


async def scattered(client: Client, value: Any, tag: str, *, is_ours: bool) -> Future[Any]:
    """Upload an object to a worker with a tag, again if that worker leaves.

    Runs in the event loop of the client. ``is_ours`` is true if the scheduler has our plug-ins.
    """
    pauses = iter(UPLOAD_PAUSES_S)
    while True:
        try:
            (future,) = await client.scatter(
                [value],
                **(await _place_of(client, value, tag) if is_ours else {}),
                hash=False,
                direct=is_near(client),
                asynchronous=True,
            )
        except (KeyError, OSError) as error:  # KeyError: the scheduler no longer has it
            pause = next(pauses, None)
            if pause is None:
                raise
            logger.debug("an upload is repeated after %g s: %r", pause, error)
            await asyncio.sleep(pause)
        else:
            return future  # type: ignore[no-any-return]


async def _place_of(client: Client, value: Any, tag: str) -> dict[str, Any]:
    """Return which workers may get an object, as Dask's options, empty for any worker."""
    calls = SchedulerCalls(client.scheduler)
    places = await calls.upload_places(tag, int(sizeof(value)))
    return {"workers": places, "timeout": PLACE_TIMEOUT_S} if places else {}


def is_near(client: Client) -> bool | None:
    """Return True if the workers can be reached directly, or None to let Dask decide."""
    # Only a scheduler on the loopback address is certainly near. A tunnel to another scheduler
    # starts there too, but is not the scheduler's own address.
    address = getattr(client.scheduler, "address", "")
    if "://127." not in address:
        return None
    # The client is in its event loop: this does not contact the scheduler.
    return True if client.scheduler_info().get("address") == address else None
