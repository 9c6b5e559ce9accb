"""One watch for all pods of a cluster."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.kubernetes.api import (
    TRANSIENT,
    KubernetesApi,
    KubernetesError,
    Resource,
    refusal,
)

logger = logging.getLogger("scalable.providers.kubernetes")

GONE = 410
#: Seconds after which the API server closes a watch, which is then resumed.
WATCH_S = 300
#: Seconds without a byte after which a watch counts as lost. Bookmarks arrive about every minute.
SILENT_S = WATCH_S + 30
#: Maximum number of bytes of a line: an object of etcd has at most 1.5 MiB.
LONGEST_LINE = 2**22

Pod = Mapping[str, Any]


class PodWatch:
    """A cluster's pods, as last reported. ``on_change(pod, gone)`` is called in the event loop."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        selector: str,
        on_change: Callable[[Pod, bool], object] = lambda _pod, _gone: None,
    ) -> None:
        #: Existing pods, by name.
        self.pods: dict[str, Pod] = {}
        #: Number of times that all pods were listed.
        self.relists = 0
        self._api = api
        self._resource = Resource("pods", namespace)
        self._selector = selector
        self._on_change = on_change
        self._version: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """List the pods, and watch them in the background."""
        await self._list()
        self._task = asyncio.create_task(self._run(), name="pod watch")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def changed(self, timeout_s: float) -> None:
        """Wait until a pod has changed, or for ``timeout_s`` seconds."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _list(self) -> None:
        found = await self._api.request(
            "GET", self._resource, query={"labelSelector": self._selector}
        )
        self.relists += 1
        pods = {pod["metadata"]["name"]: pod for pod in found.get("items", ())}
        for name in self.pods.keys() - pods.keys():
            self._note(self.pods[name], gone=True)
        for name, pod in pods.items():
            if pod != self.pods.get(name):
                self._note(pod)
        self._version = found["metadata"]["resourceVersion"]

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._follow()
                failures = 0
            except ProviderError as error:
                failures += 1
                logger.debug("the watch of pods ended: %s", error)
                if isinstance(error, KubernetesError) and error.status == GONE:
                    self._version = None
                    continue
                if failures == 1 or failures % 10 == 0:
                    logger.warning("the pods cannot be watched now: %s", error)
                await asyncio.sleep(self._api.pause(min(failures, 5)))

    async def _follow(self) -> None:
        """Process one watch until the server closes it."""
        import aiohttp

        query = {
            "labelSelector": self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._version),
            "timeoutSeconds": str(WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENT_S)
        try:
            async with await self._api.open(
                "GET", self._resource.path(), query=query, timeout=timeout
            ) as answer:
                if answer.status >= 400:
                    raise refusal(answer.status, await answer.text())
                async for line in _lines(answer.content):
                    self._take(json.loads(line))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise KubernetesError(
                f"the watch was lost: {error or type(error).__name__}", transient=True
            ) from error

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, thing = event.get("type"), event.get("object", {})
        if kind == "ERROR":
            code = int(thing.get("code", 500))
            raise KubernetesError(
                str(thing.get("message", "the watch failed")),
                status=code,
                transient=code in TRANSIENT,
            )
        self._version = thing["metadata"]["resourceVersion"]
        if kind in ("ADDED", "MODIFIED"):
            self._note(thing)
        elif kind == "DELETED":
            self._note(thing, gone=True)

    def _note(self, pod: Pod, *, gone: bool = False) -> None:
        name = pod["metadata"]["name"]
        if gone:
            self.pods.pop(name, None)
        else:
            self.pods[name] = pod
        self._on_change(pod, gone)
        self._changed.set()


async def _lines(content: Any) -> Any:
    """Yield the lines of a response, which may be longer than aiohttp's buffer."""
    rest = b""
    async for chunk in content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > LONGEST_LINE:
            raise ValueError("an event of the watch is too long")
