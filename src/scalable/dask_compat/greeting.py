"""Seams of the first message of a scheduler to a client."""

from __future__ import annotations

from typing import Any

from distributed import Scheduler
from distributed.comm.core import Comm

from scalable.dask_compat.facts import Seams, accepts, declares, mentions

seams = Seams("greeting of clients")

_SCHEDULER = "distributed.scheduler:Scheduler"


@seams.relies_on(
    declares(f"{_SCHEDULER}.add_client", "self", "comm", "client", "versions"),
    mentions(f"{_SCHEDULER}.__init__", "register-client", "add_client"),
    mentions(f"{_SCHEDULER}.add_client", "BatchedSend", "stream-start"),
    mentions("distributed.batched:BatchedSend._background_send", "comm", "write"),
    accepts("distributed.comm.core:Comm.write", 2, "serializers", "on_error"),
)
class GreetingScheduler(Scheduler):
    """A scheduler whose first message to a client is sent alone.

    Dask sends several messages in one batch. A client that connects treats a batch of more than the
    greeting as an error and never works. This happens if another client cancels tasks, which is
    announced to all clients, in the same two milliseconds.
    """

    async def add_client(self, comm: Comm, client: str, versions: dict[str, Any]) -> None:
        send_first_message_alone(comm)
        await super().add_client(comm, client, versions)


def send_first_message_alone(comm: Comm) -> None:
    """Make a connection send the first message of its first batch in a separate batch."""
    write = comm.write

    async def write_first_alone(batch: Any, **options: Any) -> Any:
        comm.write = write  # type: ignore[method-assign]
        if len(batch) < 2:
            return await write(batch, **options)
        first, *others = batch
        return await write([first], **options) + await write(others, **options)

    comm.write = write_first_alone  # type: ignore[method-assign,assignment]
