"""A check that something listens at an address."""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def listens(address: str, timeout_s: float) -> bool:
    """Return False if connections are refused; lost ones may be the network's doing.

    Dask tries a refused connection again until its timeout is over.

    Parameters
    ----------
    address
        Address of a scheduler or worker, such as ``tls://127.0.0.1:8786``.
    timeout_s
        Seconds after which a connection counts as lost.
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
