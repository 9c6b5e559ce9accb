"""Keeper of a remote cluster, a program that exits when the scheduler has exited.

Run it with ``python -m ... DIRECTORY ADDRESS``. A backend can delete a cluster's objects with the
keeper if it cannot delete them with the scheduler.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from pathlib import Path

from distributed import Security
from distributed.core import rpc

from scalable.harmless import log_to_stderr
from scalable.protocol.credentials import security_of
from scalable.protocol.streams import listens
from scalable.records.directory import pem_fields
from scalable.records.packing import CREDENTIALS, key_of

logger = logging.getLogger("scalable.clusters.programs")

PERIOD_S = 2.0
ANSWER_TIMEOUT_S = 10.0
#: Seconds without an answer after which the scheduler has exited: if nothing listens, and if
#: connections are accepted or lost on the way.
CLOSED_S, SILENT_S = 15.0, 300.0


async def wait_for_end(address: str, security: Security | None) -> str:
    """Wait until the scheduler has answered and then exited, and return the reason."""
    first: str | None = None
    heard = listened = time.monotonic()
    while True:
        found = await _identity(address, security)
        now = time.monotonic()
        if found is not None:
            if first is None:
                logger.info("the scheduler at %s answers", address)
            elif found != first:
                return "another scheduler has taken its place"
            first, heard, listened = found, now, now
        elif first is not None:
            if await listens(address, PERIOD_S):
                listened = now
            if now - listened > CLOSED_S or now - heard > SILENT_S:
                return f"it has not answered for {now - heard:.0f} s"
        await asyncio.sleep(PERIOD_S)


async def _identity(address: str, security: Security | None) -> str | None:
    """Return the id of the scheduler, or None if it does not answer."""
    arguments = {} if security is None else security.get_connection_args("client")
    scheduler = rpc(address, timeout=ANSWER_TIMEOUT_S, connection_args=arguments)
    try:
        answer = await asyncio.wait_for(scheduler.identity(), ANSWER_TIMEOUT_S)
    except (OSError, TimeoutError):
        return None
    finally:
        await scheduler.close_rpc()
    return str(answer["id"])


async def keep(address: str, security: Security | None) -> str:
    """Wait until the scheduler has exited or this process gets SIGTERM. Return the reason."""
    waiting = asyncio.ensure_future(wait_for_end(address, security))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, waiting.cancel)
    try:
        return await waiting
    except asyncio.CancelledError:
        return "the keeper got SIGTERM"


def main() -> None:
    """Follow the scheduler at the address until it has exited."""
    log_to_stderr()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    files = Path(sys.argv[1])
    texts = (files.joinpath(key_of(name)).read_text(encoding="utf-8") for name in CREDENTIALS)
    reason = asyncio.run(keep(sys.argv[2], security_of(pem_fields(*texts))))
    logger.info("the scheduler has stopped: %s", reason)


if __name__ == "__main__":
    main()
