"""Requests to Google's services: retries, pages, and a bounded pool of threads."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scalable.errors import ProviderError

# Errors -------------------------------------------------------------------------------------------


NOT_FOUND, CONFLICT, FORBIDDEN, UNAUTHORIZED, CHANGED = 404, 409, 403, 401, 412
TRANSIENT = (408, 429, 500, 502, 503, 504)
THROTTLED = ("rateLimitExceeded", "userRateLimitExceeded")
_LOGIN = (
    "log in with `gcloud auth application-default login`, or set "
    "GOOGLE_APPLICATION_CREDENTIALS to the key file of a service account"
)


class GoogleError(ProviderError):
    """A Google service refused or did not answer a request."""

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
        #: Reason or code of the service, such as ``alreadyExists``.
        self.reason = reason
        #: Seconds after which the service requests a retry; 0 if it does not specify any.
        self.after_s = 0.0


def refusal(status: int, text: str, retry_after: str = "") -> GoogleError:
    """Return the error for an answer with a JSON error or a proxy's message."""
    said = _error_in(text)
    entries = said.get("errors") or [{}]
    reason = str(entries[0].get("reason") or said.get("status") or "")
    message = one_line(str(said.get("message") or text)) or f"Google answered {status}"
    transient = status in TRANSIENT or reason in THROTTLED
    error = GoogleError(
        message, status=status, reason=reason, hint=_hint(status, reason), transient=transient
    )
    error.after_s = float(retry_after) if retry_after.isdigit() else 0.0
    return error


def _error_in(text: str) -> Mapping[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    found = said.get("error") if isinstance(said, dict) else None
    return found if isinstance(found, dict) else {}


def _hint(status: int, reason: str) -> str | None:
    if status == UNAUTHORIZED:
        return _LOGIN
    if status == FORBIDDEN and reason not in THROTTLED:
        return "docs/cloud.md lists the roles that an account needs"
    return None


def no_credentials(error: Exception) -> ProviderError:
    """Return a one-line error about credentials that are missing or not accepted."""
    said = error.args[0] if error.args else type(error).__name__
    first = one_line(str(said)).partition(". ")[0]
    return ProviderError(
        f"Google Cloud does not accept the credentials of this user: {first}", hint=_LOGIN
    )


def one_line(text: str, longest: int = 300) -> str:
    """Return a string on one line, cut to ``longest`` characters."""
    words = " ".join(text.split())
    return words if len(words) <= longest else f"{words[: longest - 3]}..."


logger = logging.getLogger("scalable.providers.gcp")

#: Address of all services of Google Cloud, for tests and private endpoints.
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


class GoogleApi:
    """Google's services with the user's credentials, by default in the user's project."""

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
        """Return the connection, opened by the first call."""
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
                "no Google Cloud project is set",
                hint="set project_id of the target, or GOOGLE_CLOUD_PROJECT",
            )
        return self._project

    async def credentials(self) -> Any:
        """Return the credentials with a valid access token."""
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
        Makes up to eight attempts within 40 s. Raises GoogleError if the service refuses the
        request or does not answer.
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
                logger.debug("%s %s: %s; next attempt in %.1f s", method, url, error, pause)
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


# Channel ------------------------------------------------------------------------------------------

SCOPES = (
    "https://www.googleapis.com/auth/cloud-platform",
    "https://www.googleapis.com/auth/userinfo.email",
)
REQUEST_TIMEOUT_S = 30.0


class Channel:
    """Connection over which any number of threads can send requests."""

    def __init__(self, at_once: int) -> None:
        try:
            import google.auth
            import requests
            from google.auth.exceptions import GoogleAuthError
            from google.auth.transport.requests import Request
        except ImportError as error:
            raise ProviderError(
                "the libraries of Google Cloud are not installed",
                hint="pip install google-cloud-compute",
            ) from error
        try:
            found: tuple[Any, str | None] = google.auth.default(scopes=SCOPES)
        except (GoogleAuthError, OSError, ValueError) as error:
            raise no_credentials(error) from error
        self.credentials, self.project = found
        self._http = requests.Session()
        for scheme in ("https://", "http://"):
            self._http.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=at_once))
        self._asking = functools.partial(Request(self._http), timeout=REQUEST_TIMEOUT_S)
        self._lock = threading.Lock()

    def close(self) -> None:
        self._http.close()

    def token(self, refused: str | None = None) -> str:
        """Return a valid access token, other than one that a service has refused."""
        from google.auth.exceptions import GoogleAuthError, TransportError

        with self._lock:
            if not self.credentials.valid or self.credentials.token == refused:
                try:
                    self.credentials.refresh(self._asking)
                except TransportError as error:
                    raise GoogleError("no access token: no answer", transient=True) from error
                except GoogleAuthError as error:
                    if error.retryable:
                        message = f"no access token: {error.args[0]}"
                        raise GoogleError(message, transient=True) from error
                    raise no_credentials(error) from error
            return str(self.credentials.token)

    def send(
        self, method: str, url: str, query: Mapping[str, str] | None, body: Any
    ) -> tuple[int, str, str]:
        """Send a request, and return status, body and ``Retry-After``. Renews a refused token."""
        token = self.token()
        answer = self._send(method, url, query, body, token)
        if answer[0] == UNAUTHORIZED:
            answer = self._send(method, url, query, body, self.token(refused=token))
        return answer

    def _send(
        self, method: str, url: str, query: Mapping[str, str] | None, body: Any, token: str
    ) -> tuple[int, str, str]:
        from requests.exceptions import RequestException

        kind, data = "application/json", None
        if isinstance(body, bytes):
            kind, data = "application/x-www-form-urlencoded", body
        elif body is not None:
            data = json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}"}
        project = getattr(self.credentials, "quota_project_id", None)
        if project:
            headers["X-Goog-User-Project"] = str(project)
        if data is not None:
            headers["Content-Type"] = kind
        try:
            answer = self._http.request(
                method, url, params=query, data=data, headers=headers, timeout=REQUEST_TIMEOUT_S
            )
        except (RequestException, OSError) as error:
            raise GoogleError(
                f"Google Cloud does not answer: {type(error).__name__}", transient=True
            ) from error
        return answer.status_code, answer.text, answer.headers.get("Retry-After", "")


# Operations ---------------------------------------------------------------------------------------

FIRST_POLL_S, LONGEST_POLL_S = 0.5, 3.0


class Operations:
    """Waits for any number of operations, with one list request per zone at a time."""

    def __init__(self, api: GoogleApi) -> None:
        self._api = api
        # Pending futures by scope (`zones/Z` or `global`, after the project) and operation name.
        self._awaited: dict[str, dict[str, asyncio.Future[dict[str, Any]]]] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}

    async def outcome(
        self, scope: str, operation: dict[str, Any], within_s: float, project: str | None = None
    ) -> dict[str, Any]:
        """Return an operation when it is done, or unchanged after ``within_s`` seconds."""
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
                logger.debug("could not list the operations of %s: %s", scope, error)
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
