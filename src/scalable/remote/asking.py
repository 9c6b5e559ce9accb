"""Requests to a cloud from synchronous code."""

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
    """Run ``question`` with a new connection, which is closed afterwards.

    Can be called in an event loop. Blocks for at most ``timeout_s`` seconds. Raises ProviderError
    if the cloud refuses or does not answer in time.
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
