"""Requests to the running scheduler of a cluster, from any process of its owner."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from scalable.errors import ClusterError
from scalable.liveness import is_alive, place_of
from scalable.protocol.addresses import is_loopback
from scalable.protocol.handlers import Handler, request
from scalable.records import ClusterDirectory, find, status_of
from scalable.views.explanation import Explanations

logger = logging.getLogger("scalable.clusters")

_Answer = TypeVar("_Answer")
Question = Callable[[Any], Coroutine[Any, Any, _Answer]]

ANSWER_S = 10.0
#: Timeout in seconds if a scheduler listens only on another machine's loopback. That machine may be
#: a container that shares this machine's network.
ELSEWHERE_TIMEOUT_S = 2.0
#: Longest wait until a cluster's status, which its scheduler writes, shows new counts; in seconds.
SHOWN_TIMEOUT_S, SHOWN_POLL_S = 5.0, 0.05


def ask(
    directory: ClusterDirectory, handler: Handler, *, timeout_s: float = ANSWER_S, **arguments: Any
) -> Any:
    """Return the answer of a cluster's scheduler. Raises the errors of :func:`with_scheduler`."""
    return with_scheduler(directory, lambda comm: request(comm, handler, **arguments), timeout_s)


def with_scheduler(
    directory: ClusterDirectory, question: Question[_Answer], timeout_s: float = ANSWER_S
) -> _Answer:
    """Return the result of ``question`` within ``timeout_s``, given a cluster's scheduler.
    Raise ClusterError if the scheduler does not answer in time, or the cluster has stopped.
    """
    from scalable.protocol.credentials import no_answer

    name = directory.record().name
    if directory.record().embedded:
        return _ask_session(directory, question, timeout_s)
    known, pem = reached(directory)
    # Less than the whole time, so that the reason of a failed connection can be reported.
    connect_s, hint = 0.8 * timeout_s, f"`scalable status {name}` shows its state"
    # A remote scheduler is reached through a tunnel, and its process is unknown.
    tunnelled = directory.record().remote
    if not tunnelled and is_alive(known) is None and is_loopback(known["address"]):
        connect_s = min(connect_s, ELSEWHERE_TIMEOUT_S)
        hint = f"it listens only on the machine of {place_of(known)}: log in there or set interface"
    logger.debug("querying the scheduler of %s at %s", name, known["address"])

    try:
        return ask_at(known["address"], pem, question, timeout_s, connect_s)
    # Errors of OpenSSL are OSErrors. Tornado raises ValueError if the other side closes during
    # the handshake.
    except (OSError, TimeoutError, ValueError) as error:
        directory.record()  # raises the error of a cluster that has just ended
        raise ClusterError(
            f"the scheduler of cluster {name!r} does not answer at {known['address']}: "
            f"{no_answer(error)}",
            hint=hint,
        ) from error


def reached(directory: ClusterDirectory) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a scheduler's record, including its ``address``, and the credentials to connect.
    Raise ClusterError if the cluster has stopped, or its scheduler has no address (yet).
    """
    name = directory.record().name
    refuse_gone(directory)
    known = directory.scheduler()
    if known is None or not known.get("address"):
        raise ClusterError(
            f"the scheduler of cluster {name!r} {directory.not_listening()}",
            hint=f"`scalable status {name}` shows its state",
        )
    if directory.record().embedded:
        raise ClusterError(
            f"cluster {name!r} runs in process {known.get('pid')}; no other process can use it",
            hint="start it with `scalable up` or detach=True to reach it from elsewhere",
        )
    return known, directory.pem()


def _ask_session(
    directory: ClusterDirectory, question: Question[_Answer], timeout_s: float
) -> _Answer:
    """Ask the scheduler in a session's process. Raises the errors of :func:`with_scheduler`."""
    name, known = directory.record().name, directory.scheduler() or {}
    refuse_gone(directory)
    pid, path = known.get("pid"), known.get("socket")
    if not path:
        raise ClusterError(
            f"session {name!r} in process {pid} cannot be reached from other processes",
            hint="start it with `scalable up` or detach=True to reach it from elsewhere",
        )
    logger.debug("querying session %s in process %s", name, pid)

    from scalable.protocol.private_socket import SocketComm

    try:
        return _run(lambda: question(SocketComm(Path(path))), timeout_s)
    except (OSError, TimeoutError, ValueError) as error:
        directory.record()  # raises the error of a session that has just ended
        here = is_alive(known) is not None
        hint = f"`scalable status {name}` shows its state"
        raise ClusterError(
            f"session {name!r} in process {pid} does not answer: {error or 'no answer in time'}",
            hint=hint if here else f"it can be reached only from the machine of {place_of(known)}",
        ) from error


def ask_at(
    address: str,
    pem: Mapping[str, str],
    question: Question[_Answer],
    timeout_s: float,
    connect_s: float | None = None,
) -> _Answer:
    """Send a request to an address within ``timeout_s``, or raise OSError or ValueError."""
    from distributed.core import rpc

    from scalable.protocol.credentials import security_of

    async def call() -> _Answer:
        arguments_of = security_of(pem).get_connection_args("client")
        async with rpc(
            address, timeout=connect_s or 0.8 * timeout_s, connection_args=arguments_of
        ) as scheduler:
            return await question(scheduler)

    return _run(call, timeout_s)


def _run(question: Callable[[], Coroutine[Any, Any, _Answer]], timeout_s: float) -> _Answer:
    """Run a coroutine in a new event loop, in a thread if this thread already runs one."""
    import asyncio

    def answer() -> _Answer:
        return asyncio.run(asyncio.wait_for(question(), timeout_s))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return answer()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(answer).result()


def refuse_gone(directory: ClusterDirectory) -> None:
    """Raise ClusterError if a cluster has certainly stopped, so its scheduler cannot answer."""
    status = status_of(directory, time.time())
    if status.state in ("failed", "stale"):
        raise ClusterError(
            f"cluster {status.name!r} is {status.state}: {status.reason}",
            hint=f"run `scalable down {status.name}` to remove it, or "
            f"`scalable up --name {status.name}` to restart it",
        )


def beyond_most(name: str, counts: Mapping[str, int]) -> tuple[int, str] | None:
    """Return (total workers, "max_workers 8") if new counts would exceed such a target limit.
    Return None otherwise, or if there are several managers. ClusterError for an unknown pool.
    """
    directory = find(name)
    record, status = directory.record(), directory.status() or {}
    known = {tag for tag in (*record.tags, *status.get("pools", ())) if tag}
    for tag in counts:
        if known and tag not in known:
            raise ClusterError(
                f"cluster {record.name!r} has no pool {tag!r}",
                hint=f"known pools: {', '.join(map(repr, sorted(known)))}",
            )
    if record.max_workers is None or len(status.get("managers", ())) > 1:
        return None
    now = {tag: int(pool["wanted"]) for tag, pool in status.get("pools", {}).items()}
    total = sum((now | dict(counts)).values())
    grows = any(count > now.get(tag, 0) for tag, count in counts.items())
    if not grows or total <= record.max_workers:
        return None
    return total, f"{record.limited_by} {record.max_workers}"


def scale(name: str, counts: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Set desired worker counts of a running cluster, and return the counts before and after.
    The cluster's status has the new counts then, unless others change them at the same time.
    """
    directory = find(name)
    answer = ask(directory, Handler.SCALE, counts=dict(counts))
    deadline = time.monotonic() + SHOWN_TIMEOUT_S
    while not _shows(directory.status(), answer["after"]):
        if time.monotonic() > deadline:
            logger.debug("the status of %s does not show the new counts %s", name, answer["after"])
            break
        time.sleep(SHOWN_POLL_S)
    return answer["before"], answer["after"]


def _shows(status: Mapping[str, Any] | None, counts: Mapping[str, int]) -> bool:
    pools = {} if status is None else status.get("pools", {})
    return all(tag in pools and pools[tag]["wanted"] == count for tag, count in counts.items())


def set_budget(name: str, amount: float) -> dict[str, Any]:
    """Set the budget of a running cluster, and return its costs (empty without prices)."""
    return dict(ask(find(name), Handler.SET_BUDGET, amount=amount))


def drain(name: str, workers: Iterable[str]) -> None:
    """Drain and stop workers of a running cluster. Their manager starts replacements.
    Running tasks finish first, and results move to other workers. Unknown names are ignored.
    """
    directory = find(name)
    reasons = dict.fromkeys(workers, f"requested by {directory.record().owner}")
    ask(directory, Handler.DRAIN, workers=reasons)


# Explanations -------------------------------------------------------------------------------------


def explain(name: str, about: str | None = None) -> Explanations:
    """Return why pools and tasks of a cluster wait, or why a task has failed.
    ``name`` may also be the cluster's id or run. ``about`` is a tag, a task's key or its prefix, a
    task name, or None for everything that waits. Raise ClusterError if nothing matches or answers.
    """
    directory = find(name)
    answer = ask(directory, Handler.EXPLAIN, name=about, cluster=directory.record().name)
    return Explanations.from_dict(answer)
