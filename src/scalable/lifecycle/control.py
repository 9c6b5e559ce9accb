"""Asks the running scheduler of a cluster, from any process that may read its credentials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalable.errors import ClusterError
from scalable.records import ClusterDirectory, find

ANSWER_TIMEOUT_S = 10.0


def ask(directory: ClusterDirectory, operation: str, **arguments: Any) -> Any:
    """Ask a scheduler, and wait for its answer for at most 10 s.

    Parameters
    ----------
    directory
        The cluster.
    operation
        Name of the handler.

    Raises
    ------
    ClusterError
        When it does not answer, or refuses.
    """
    import asyncio

    from distributed.core import rpc

    from scalable.cluster.credentials import security_of

    known = directory.scheduler()
    name = directory.record().name
    if known is None or not known.get("address"):
        raise ClusterError(
            f"cluster {name!r} has no scheduler that could be asked",
            hint=f"`scalable status {name}` says how it is",
        )
    if directory.record().embedded:
        raise ClusterError(
            f"cluster {name!r} lives in process {known.get('pid')}, and listens to that alone",
            hint="start it with `scalable up` or detach=True to reach it from elsewhere",
        )
    arguments_of = security_of(directory.pem()).get_connection_args("client")

    async def call() -> Any:
        async with rpc(known["address"], connection_args=arguments_of) as scheduler:
            return await getattr(scheduler, operation)(**arguments)

    try:
        return asyncio.run(asyncio.wait_for(call(), ANSWER_TIMEOUT_S))
    except (OSError, TimeoutError) as error:
        raise ClusterError(
            f"the scheduler of cluster {name!r} does not answer at {known['address']}: "
            f"{error or 'no answer in time'}",
            hint=f"`scalable status {name}` says how it is",
        ) from error


def scale(name: str, counts: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Set wanted counts of a running cluster; the counts before and after."""
    answer = ask(find(name), "scalable_scale", counts=dict(counts))
    return answer["before"], answer["after"]
