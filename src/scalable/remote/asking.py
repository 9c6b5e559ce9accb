"""Questions to a cloud from code that is no coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from scalable.errors import ProviderError
from scalable.remote.cloud import Cloud

Result = TypeVar("Result")


def ask(
    connect: Callable[[], Cloud],
    question: Callable[[Cloud], Awaitable[Result]],
    timeout_s: float,
) -> Result:
    """Ask a cloud something, also from inside a running event loop.

    Parameters
    ----------
    connect
        Function that makes a connection, which is closed at the end.
    question
        Coroutine function of the connection.
    timeout_s
        Longest wait in seconds.

    Raises
    ------
    ProviderError
        When the cloud refuses, or does not answer in time.
    """

    async def asked() -> Result:
        cloud = connect()
        try:
            return await asyncio.wait_for(question(cloud), timeout_s)
        except TimeoutError as error:
            raise ProviderError(
                f"the cloud has not answered within {timeout_s:g} s", transient=True
            ) from error
        finally:
            await cloud.close()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asked())
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, asked()).result()
