"""Requests to a Kubernetes API server, through ``kubernetes-asyncio`` (extra ``kubernetes``).

The first request imports the library. It supports exec plugins, OIDC and in-cluster credentials,
and leaves event loop, bodies and retries to the caller.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, TypeVar

from scalable.errors import ProviderError
from scalable.manager.launcher import LimitReachedError
from scalable.providers.kubernetes.kubeconfig import DEFAULT_FILE, exists, inside
from scalable.providers.kubernetes.permissions import (
    ACCOUNT_KINDS,
    DETACHED_RULES,
    RULES,
    AccessRule,
    role,
)
from scalable.providers.kubernetes.reasons import lasting_refusal

logger = logging.getLogger("scalable.providers.kubernetes")

ATTEMPTS = 7
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
REQUEST_TIMEOUT_S = 30.0
#: Maximum number of simultaneous requests of one connection.
AT_ONCE = 16
TRANSIENT = (429, 500, 502, 503, 504)
FORBIDDEN, NOT_FOUND, NOT_ACCEPTABLE, CONFLICT, INVALID = 403, 404, 406, 409, 422
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
_VERBS = {"POST": "create", "DELETE": "delete", "PATCH": "patch", "GET": "get"}


class KubernetesError(ProviderError):
    """The API server refused or did not answer a request."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        hint: str | None = None,
        transient: bool = False,
    ) -> None:
        super().__init__(message, hint=hint, transient=transient)
        #: HTTP status; 0 if there was no answer.
        self.status = status
        #: Reason from the server, such as ``AlreadyExists``.
        self.reason = reason
        #: Seconds after which the server requests a retry; 0 if it does not specify any.
        self.after_s = 0.0


class RefusedError(KubernetesError):
    """A rule of the cluster permanently refuses an object."""


@dataclass(frozen=True)
class Resource:
    """A kind of object in one namespace."""

    #: Plural name, such as ``pods``.
    name: str
    #: Namespace; empty for objects without one.
    namespace: str
    #: API group and version, such as ``batch/v1``; empty for ``v1`` of the core group.
    group: str = ""

    def path(self, *parts: str) -> str:
        """Return the path of the collection, of an object, or of a part of an object."""
        root = f"/apis/{self.group}" if self.group else "/api/v1"
        inside = f"/namespaces/{self.namespace}" if self.namespace else ""
        return "/".join((f"{root}{inside}/{self.name}", *parts))


class KubernetesApi:
    """The API server of a kubeconfig's context, by default the current one."""

    def __init__(
        self,
        context: str | None = None,
        *,
        pause: Callable[[int], float] | None = None,
        rules: tuple[AccessRule, ...] = RULES,
    ) -> None:
        self._context = context
        #: Permissions that are listed in errors about a missing permission.
        self._rules = rules
        self.pause = pause or jittered
        self._client: Any = None
        self._opening: asyncio.Lock | None = None
        self._slots: asyncio.Semaphore | None = None
        #: Number of requests that were sent, by method.
        self.sent: dict[str, int] = {}

    async def client(self) -> Any:
        """Return the library's ``ApiClient``, created by the first call."""
        if self._opening is None:
            self._opening, self._slots = asyncio.Lock(), asyncio.Semaphore(AT_ONCE)
        async with self._opening:
            if self._client is None:
                self._client = await _open(self._context)
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def create(self, resource: Resource, body: bytes) -> dict[str, Any]:
        """Create an object, and return the server's version.
        If it exists, an attempt with a lost answer has created it, since names are never reused.
        ``body`` is then returned, because the user may not be allowed to read the object.
        """
        try:
            made: dict[str, Any] = await self.request("POST", resource, body=body)
        except KubernetesError as error:
            if error.reason != "AlreadyExists":
                raise
            made = json.loads(body)
        return made

    async def create_root(self, resource: Resource, body: bytes) -> dict[str, Any]:
        """Create an object that will own others, and return the server's version with its uid."""
        made = await self.create(resource, body)
        if "uid" not in made["metadata"]:
            made = await self.request("GET", resource, made["metadata"]["name"])
        return made

    async def delete(self, resource: Resource, name: str, **options: Any) -> bool:
        """Delete an object, with ``DeleteOptions`` fields. Returns False if it is already gone."""
        body = json.dumps({"apiVersion": "v1", "kind": "DeleteOptions", **options}).encode()
        try:
            await self.request("DELETE", resource, name, body=body)
        except KubernetesError as error:
            if error.status != NOT_FOUND:
                raise
            return False
        return True

    async def request(
        self,
        method: str,
        resource: Resource,
        *parts: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content: str = JSON,
    ) -> Any:
        """Send a request, with retries, and return the decoded JSON or the plain answer.
        Status 429 and 5xx, conflicts and lost connections are retried, up to seven attempts in all.
        Raises ProviderError if the server refuses the request or does not answer.
        """
        path = resource.path(*parts)
        try:
            return await self.request_path(method, path, query=query, body=body, content=content)
        except KubernetesError as error:
            raise _with_hint(error, method, resource, parts, self._rules) from error

    async def request_path(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content: str = JSON,
    ) -> Any:
        """Send a request to a path, with the retries of :meth:`request`."""
        for attempt in range(1, ATTEMPTS):
            try:
                return await self._once(method, path, query, body, content)
            except KubernetesError as error:
                if not (error.transient or error.reason == "Conflict"):
                    raise
                pause = max(self.pause(attempt), min(error.after_s, LONGEST_PAUSE_S))
                logger.debug("%s %s: %s; next attempt in %.1f s", method, path, error, pause)
            await asyncio.sleep(pause)
        return await self._once(method, path, query, body, content)

    async def _once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        content: str,
    ) -> Any:
        import aiohttp

        await self.client()
        assert self._slots is not None
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        async with self._slots:
            try:
                async with await self.open(
                    method, path, query=query, data=body, content=content, timeout=timeout
                ) as answer:
                    text = await answer.text()
                    status = answer.status
                    json_answer = JSON in answer.headers.get("Content-Type", "")
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise KubernetesError(
                    f"the API server does not answer: {error or type(error).__name__}",
                    transient=True,
                ) from error
        if status >= 400:
            raise refusal(status, text)
        return json.loads(text) if json_answer else text

    async def open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes | None = None,
        content: str = JSON,
        timeout: Any = None,  # noqa: ASYNC109 - aiohttp's
    ) -> Any:
        """Send a request once, and return aiohttp's response with an unread body."""
        client = await self.client()
        headers = await self.headers()
        if data is not None:
            headers["Content-Type"] = content
        self.sent[method] = self.sent.get(method, 0) + 1
        return await client.rest_client.pool_manager.request(
            method,
            client.configuration.host + path,
            params=dict(query or {}),
            data=data,
            headers=headers,
            timeout=timeout,
        )

    async def headers(self) -> dict[str, str]:
        """Return headers with the kubeconfig's credentials."""
        client = await self.client()
        headers: dict[str, str] = {"Accept": JSON}
        await client.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    async def websocket(self, path: str, query: Mapping[str, str], protocol: str) -> Any:
        """Open a WebSocket without a heartbeat. Raises aiohttp's errors."""
        client = await self.client()
        host = client.configuration.host
        return await client.rest_client.pool_manager.ws_connect(
            "ws" + host.removeprefix("http") + path,
            params=dict(query),
            # The kubelet answers 406 to a port-forward that accepts JSON only.
            headers={**await self.headers(), "Accept": "*/*"},
            protocols=(protocol,),
            max_msg_size=0,
        )


def jittered(attempt: int) -> float:
    """Return a random pause in seconds. Its bound doubles with each attempt, up to 10 s."""
    bound = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**attempt)
    return bound * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def refusal(status: int, text: str) -> KubernetesError:
    """Return the error for an answer with a ``Status`` object or a proxy's message."""
    try:
        said = json.loads(text)
        message, reason = str(said.get("message") or ""), str(said.get("reason") or "")
        after_s = float((said.get("details") or {}).get("retryAfterSeconds") or 0)
    except (ValueError, AttributeError):
        message, reason, after_s = text.strip()[:200], "", 0.0
    error = KubernetesError(
        message or f"the API server answered {status}",
        status=status,
        reason=reason,
        transient=status in TRANSIENT,
    )
    error.after_s = after_s
    return error


def _with_hint(
    error: KubernetesError,
    method: str,
    resource: Resource,
    parts: tuple[str, ...],
    rules: tuple[AccessRule, ...],
) -> ProviderError:
    """Return the error. For a missing permission, the hint is the Role that grants it."""
    lasting = lasting_refusal(error.message)
    if error.status in (FORBIDDEN, INVALID) and lasting is not None:
        return RefusedError(
            f"Kubernetes refuses {resource.name}: {error.message}",
            status=error.status,
            reason=error.reason,
            hint=lasting,
        )
    if error.status != FORBIDDEN:
        return error
    if "exceeded quota" in error.message:
        return LimitReachedError(f"the quota is used up: {error.message}")
    name = "/".join((resource.name, *parts[1:]))
    verb = "list" if method == "GET" and not parts else _VERBS.get(method, method.lower())
    where = f" in namespace {resource.namespace!r}" if resource.namespace else ""
    return KubernetesError(
        f"this user may not {verb} {name}{where}: {error.message}",
        status=FORBIDDEN,
        reason=error.reason,
        hint=_other_ways(resource.name)
        + "this Role grants what is needed; bind it to the user:\n"
        + role(resource.namespace, rules),
    )


def load_library() -> None:
    """Import the library if it is installed, so that a request's timeout excludes its import."""
    with suppress(ImportError):
        load()


async def _open(context: str | None) -> Any:
    try:
        client, config = load()
    except ImportError as error:
        raise ProviderError(
            "kubernetes-asyncio is not installed", hint="pip install kubernetes-asyncio pathspec"
        ) from error
    configuration = client.Configuration()
    try:
        if context is None and inside():
            config.load_incluster_config(client_configuration=configuration)
        else:
            # The library reads the variable only once, when it is imported.
            file = os.environ.get("KUBECONFIG") or str(DEFAULT_FILE)
            if not exists(file):
                raise ProviderError(
                    f"there is no kubeconfig at {file}",
                    hint="set KUBECONFIG to the file that describes your Kubernetes cluster",
                )
            await config.load_kube_config(
                config_file=file, context=context, client_configuration=configuration
            )
    except (config.ConfigException, OSError, ValueError) as error:
        raise ProviderError(
            f"there is no usable kubeconfig: {error}",
            hint="set KUBECONFIG, or set context of the target to one of its contexts",
        ) from error
    return client.ApiClient(configuration)


def _other_ways(resource: str) -> str:
    """Return alternatives for users who may not grant rights to a manager, or an empty string."""
    if resource not in ACCOUNT_KINDS:
        return ""
    return "set manager_service_account of the target to an account, or write manager: here; or "


# Library ------------------------------------------------------------------------------------------

#: Packages whose bodies import all others.
LAZY = (
    "kubernetes_asyncio",
    "kubernetes_asyncio.client",
    "kubernetes_asyncio.client.models",
)
_LOCK = threading.RLock()


def load() -> tuple[ModuleType, ModuleType]:
    """Import the library, and return its modules ``client`` (with lazy names) and ``config``."""
    with _LOCK:
        if not any(name in sys.modules for name in LAZY):
            for name in LAZY:
                _add(name)
            client = sys.modules["kubernetes_asyncio.client"]
            for module, name in (("configuration", "Configuration"), ("api_client", "ApiClient")):
                found = import_module(f"kubernetes_asyncio.client.{module}")
                setattr(client, name, getattr(found, name))
        client = import_module("kubernetes_asyncio.client")
        return client, import_module("kubernetes_asyncio.config")


def _add(name: str) -> None:
    """Put a package into ``sys.modules`` without running its code."""
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = module_from_spec(spec)
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, module)
    vars(module)["__getattr__"] = _body_of(module, spec.loader.exec_module)


def _body_of(module: ModuleType, run: Callable[[ModuleType], None]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` that runs the module's code before looking up the name."""

    def attribute(name: str) -> Any:
        with _LOCK:
            if "__getattr__" in vars(module):
                if find_spec(f"{module.__name__}.{name}") is not None:
                    return import_module(f"{module.__name__}.{name}")
                del vars(module)["__getattr__"]
                run(module)
        try:
            return vars(module)[name]
        except KeyError:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}") from None

    return attribute


# Blocking -----------------------------------------------------------------------------------------

Result = TypeVar("Result")


def ask(
    context: str,
    question: Callable[[KubernetesApi], Awaitable[Result]],
    timeout_s: float,
    rules: tuple[AccessRule, ...] = DETACHED_RULES,
) -> Result:
    """Run ``question`` with a temporary connection to a context.
    May be called inside an event loop. Blocks for at most ``timeout_s`` seconds. An empty
    ``context`` is the current one, or the pod's own. Errors about a missing permission show
    ``rules``. Raises ProviderError if the request is refused or not answered in time.
    """

    async def asked() -> Result:
        api = KubernetesApi(context or None, rules=rules)
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


# Watches ------------------------------------------------------------------------------------------


GONE = 410
#: Seconds after which the API server closes a watch, which is then resumed.
WATCH_S = 300
#: Seconds without a byte after which a watch counts as lost. Bookmarks arrive about every minute.
SILENT_S = WATCH_S + 30
#: Maximum number of bytes of a line: an object of etcd has at most 1.5 MiB.
LONGEST_LINE = 2**22

Pod = Mapping[str, Any]


class PodWatch:
    """A cluster's pods as last reported. ``on_change(pod, gone)`` is called in the event loop."""

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
        """Wait until a pod changes, or for ``timeout_s`` seconds."""
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
                logger.debug("the watch of pods has stopped: %s", error)
                if isinstance(error, KubernetesError) and error.status == GONE:
                    self._version = None
                    continue
                if failures == 1 or failures % 10 == 0:
                    logger.warning("could not watch the pods: %s", error)
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
