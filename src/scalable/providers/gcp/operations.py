"""Results of operations, with one list for all pending operations of a zone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.gcp.api import Api

logger = logging.getLogger("scalable.providers.gcp")

FIRST_POLL_S, LONGEST_POLL_S = 0.5, 3.0


class Operations:
    """Waits for any number of operations, with one list per zone at a time."""

    def __init__(self, api: Api) -> None:
        self._api = api
        # Pending futures by scope (`zones/Z` or `global`, after the project) and operation name.
        self._awaited: dict[str, dict[str, asyncio.Future[dict[str, Any]]]] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}

    async def outcome(
        self, scope: str, operation: dict[str, Any], within_s: float, project: str | None = None
    ) -> dict[str, Any]:
        """Return an operation when it is done, or unchanged after ``within_s`` seconds.

        ``scope`` is ``zones/ZONE`` or ``global``. ``project`` is only given if it is not that of
        the connection.
        """
        if operation.get("status") == "DONE":
            return operation
        name, key = operation["name"], f"{project or ''}:{scope}"
        future = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(key, {})[name] = future
        if key not in self._polls or self._polls[key].done():
            self._polls[key] = asyncio.create_task(self._poll(key, scope, project))
        try:
            async with asyncio.timeout(within_s):
                done: dict[str, Any] = await future
                return done
        except TimeoutError:
            return operation
        finally:
            self._awaited[key].pop(name, None)

    async def _poll(self, key: str, scope: str, project: str | None) -> None:
        pause = FIRST_POLL_S
        while awaited := self._awaited.get(key):
            await asyncio.sleep(pause)
            pause = min(LONGEST_POLL_S, 1.5 * pause)
            try:
                await self._look(awaited, scope, project)
            except ProviderError as error:
                logger.debug("operations of %s are not listed: %s", scope, error)
                for future in awaited.values():
                    if not future.done():
                        future.set_exception(error)
                return

    async def _look(
        self, awaited: dict[str, asyncio.Future[dict[str, Any]]], scope: str, project: str | None
    ) -> None:
        missing = set(awaited)
        if len(missing) == 1:
            (name,) = missing
            path = f"{scope}/operations/{name}"
            _noted(awaited, await self._api.compute("GET", path, project=project))
            return
        url = await self._api.compute_url(f"{scope}/operations", project)
        query = {"orderBy": "creationTimestamp desc", "maxResults": "500"}
        async for page in self._api.pages(url, query):
            for operation in page.get("items") or ():
                missing.discard(operation["name"])
                _noted(awaited, operation)
            if not missing:
                return

    async def close(self) -> None:
        for task in self._polls.values():
            task.cancel()
        await asyncio.gather(*self._polls.values(), return_exceptions=True)


def _noted(awaited: dict[str, asyncio.Future[dict[str, Any]]], operation: dict[str, Any]) -> None:
    future = awaited.get(operation["name"])
    if future is not None and not future.done() and operation.get("status") == "DONE":
        future.set_result(operation)
