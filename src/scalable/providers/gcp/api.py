"""Requests to Google's services: retries, pages, and a bounded pool of threads."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.gcp.channel import Channel
from scalable.providers.gcp.errors import GoogleError, refusal

logger = logging.getLogger("scalable.providers.gcp")

#: Environment variable with the address of all services, for tests and private endpoints.
ENDPOINT = "SCALABLE_GCP_ENDPOINT"
ATTEMPTS = 8
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
#: Seconds after which a request is not retried.
REPEATED_FOR_S = 40.0
#: Maximum number of simultaneous requests of one connection.
AT_ONCE = 16


def service_url(service: str, path: str) -> str:
    """Return the URL of a path of a service, such as ``compute``."""
    root = os.environ.get(ENDPOINT) or f"https://{service}.googleapis.com"
    return f"{root.rstrip('/')}/{path}"


def jittered(attempt: int) -> float:
    """Return a random pause in seconds. Its bound doubles with each attempt, up to 8 s."""
    bound = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**attempt)
    return bound * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


class Api:
    """Google's services, with the user's credentials, and by default in their project."""

    def __init__(
        self, project: str | None = None, *, pause: Callable[[int], float] = jittered
    ) -> None:
        self._project = project
        self._pause = pause
        self._channel: Channel | None = None
        self._opening: asyncio.Lock | None = None
        self._threads: ThreadPoolExecutor | None = None
        #: Number of requests that were sent, by method and kind.
        self.sent: dict[str, int] = {}

    # Connection -----------------------------------------------------------------------------------

    async def channel(self) -> Channel:
        """Return the connection, which is made by the first call."""
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._channel is None:
                self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="scalable-gcp")
                self._channel = await self._in_thread(Channel, AT_ONCE)
                self._project = self._project or self._channel.project
        return self._channel

    async def project(self) -> str:
        """Return the project of the target or the credentials. Raises ProviderError without one."""
        await self.channel()
        if not self._project:
            raise ProviderError(
                "no project of Google Cloud is named",
                hint="write project_id in the target, or set GOOGLE_CLOUD_PROJECT",
            )
        return self._project

    async def credentials(self) -> Any:
        """Return the credentials, with an access token that is valid now."""
        channel = await self.channel()
        await self._in_thread(channel.token)
        return channel.credentials

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        threads, self._threads = self._threads, None
        if channel is not None:
            channel.close()
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    # Requests -------------------------------------------------------------------------------------

    async def compute(
        self,
        method: str,
        path: str,
        *,
        project: str | None = None,
        query: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> dict[str, Any]:
        """Send a request to Compute Engine, to a path within the project."""
        whole = f"compute/v1/projects/{project or await self.project()}"
        path = f"{whole}/{path}" if path else whole
        return await self.request(method, service_url("compute", path), query=query, body=body)

    async def request(
        self,
        method: str,
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> dict[str, Any]:
        """Send a request, with retries, and return the decoded answer.

        Throttling, status 5xx and lost connections are retried with growing pauses: at most eight
        attempts within 40 s. A body is sent as JSON, or as a form if it is bytes. Raises
        GoogleError if the service refuses the request or does not answer.
        """
        started = time.monotonic()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._once(method, url, query, body)
            except GoogleError as error:
                if not error.transient:
                    raise
                pause = max(self._pause(attempt), min(error.after_s, LONGEST_PAUSE_S))
                passed = time.monotonic() - started
                if attempt == ATTEMPTS or passed + pause > REPEATED_FOR_S:
                    error.message += f" ({attempt} attempts in {passed:.0f} s)"
                    raise
                logger.debug("%s %s: %s; again in %.1f s", method, url, error, pause)
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _once(
        self, method: str, url: str, query: Mapping[str, str] | None, body: Any
    ) -> dict[str, Any]:
        channel = await self.channel()
        kind = f"{method} {url.rpartition('/')[2]}"
        self.sent[kind] = self.sent.get(kind, 0) + 1
        status, text, after = await self._in_thread(channel.send, method, url, query, body)
        if status >= 400:
            raise refusal(status, text, after)
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found

    async def pages(
        self, url: str, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        asked = dict(query or {})
        while True:
            page = await self.request("GET", url, query=asked)
            yield page
            token = page.get("nextPageToken")
            if not token:
                return
            asked["pageToken"] = token

    async def compute_url(self, path: str, project: str | None = None) -> str:
        project = project or await self.project()
        return service_url("compute", f"compute/v1/projects/{project}/{path}")
