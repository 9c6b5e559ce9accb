"""Requests to Kubernetes from synchronous code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from scalable.errors import ProviderError
from scalable.providers.kubernetes.api import Api
from scalable.providers.kubernetes.permissions import DETACHED_RULES, Rule

Result = TypeVar("Result")


def ask(
    context: str,
    question: Callable[[Api], Awaitable[Result]],
    timeout_s: float,
    rules: tuple[Rule, ...] = DETACHED_RULES,
) -> Result:
    """Run ``question`` with a new connection to a context, which is closed afterwards.

    Can be called in an event loop. Blocks for at most ``timeout_s`` seconds. An empty ``context``
    is the current one, or the pod's own. Errors about a missing permission show ``rules``. Raises
    ProviderError if the request is refused or not answered in time.
    """

    async def asked() -> Result:
        api = Api(context or None, rules=rules)
        try:
            return await asyncio.wait_for(question(api), timeout_s)
        except TimeoutError as error:
            raise ProviderError(
                f"the API server has not answered within {timeout_s:g} s", transient=True
            ) from error
        finally:
            await api.close()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asked())
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, asked()).result()
