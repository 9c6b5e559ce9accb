"""A check that a server listens at an address."""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def listens(address: str, timeout_s: float) -> bool:
    """Return False only if connections are refused. Lost ones may be due to the network.

    Dask itself retries a refused connection until its timeout.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host.strip("[]"), int(port)), timeout_s
        )
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return True
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
