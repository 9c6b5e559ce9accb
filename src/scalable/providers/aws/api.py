"""Requests to AWS services through aiobotocore (extra ``aws``).

The first request imports aiobotocore. Its retries are off: retries are bounded and logged here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from scalable.errors import ProviderError

logger = logging.getLogger("scalable.providers.aws")

ATTEMPTS = 9
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 8.0
#: Seconds after which a request is not retried.
REPEATED_FOR_S = 45.0
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10, 20
#: Maximum number of simultaneous requests of one connection.
AT_ONCE = 10

_THROTTLED = {
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "PriorRequestNotComplete",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "Throttling",
    "ThrottledException",
    "ThrottlingException",
    "TooManyRequestsException",
}
_UNAVAILABLE = {
    "InternalError",
    "InternalFailure",
    "InternalServiceError",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServerException",
    "ServiceException",
    "ServiceFailure",
    "ServiceUnavailable",
    "ServiceUnavailableException",
    "Unavailable",
}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
_WRONG = {
    "AuthFailure",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_FORBIDDEN = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_LOGIN = "log in again (aws sso login, aws configure), or set AWS_PROFILE to another profile"


class AWSError(ProviderError):
    """AWS refused or did not answer a request."""

    def __init__(
        self,
        message: str,
        *,
        error_code: str = "",
        request: str = "",
        hint: str | None = None,
        transient: bool = False,
    ) -> None:
        super().__init__(message, hint=hint, transient=transient)
        #: Error code, such as ``ClusterNotFoundException``; empty if there was no answer.
        self.error_code = error_code
        #: Service and operation, such as ``ecs:RunTask``.
        self.request = request

    @property
    def forbidden(self) -> bool:
        return self.error_code in _FORBIDDEN


@dataclass(frozen=True)
class Identity:
    """User who sends the requests."""

    #: Account number.
    account: str
    #: ARN of the user, or of the role and its session.
    arn: str

    @property
    def partition(self) -> str:
        """Partition of AWS: ``aws``, or the name of another group of regions."""
        return self.arn.split(":")[1]


class AWSApi:
    """The AWS services of one region, by default the AWS configuration's region."""

    def __init__(
        self, region: str | None = None, *, pause: Callable[[int], float] | None = None
    ) -> None:
        self._given_region = region or None
        self.pause = pause or jittered
        self._session: Any = None
        self._clients: dict[str, Any] = {}
        self._open = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._identity: Identity | None = None
        #: Number of times that each request was sent.
        self.sent: dict[str, int] = {}

    @property
    def region(self) -> str:
        """The region. Raises ProviderError if none is configured."""
        region = self._given_region or self._library_session().get_config_variable("region")
        if not region:
            raise ProviderError(
                "no AWS region is set", hint="set region of the target, or AWS_REGION"
            )
        return str(region)

    async def identity(self) -> Identity:
        """Return the user who sends the requests. The answer is cached."""
        if self._identity is None:
            said = await self.call("sts", "get_caller_identity")
            self._identity = Identity(str(said["Account"]), str(said["Arn"]))
        return self._identity

    async def close(self) -> None:
        opened, self._open = self._open, AsyncExitStack()
        self._clients.clear()
        await opened.aclose()

    async def pages(self, service: str, operation: str, key: str, **parameters: Any) -> list[Any]:
        """Return the entries under ``key`` from all pages of an answer."""
        found: list[Any] = []
        given = dict(parameters)
        while True:
            answer = await self.call(service, operation, **given)
            found += answer.get(key) or ()
            token = next((t for t in _PAGES if answer.get(t)), None)
            if token is None or answer.get("IsTruncated") is False:
                return found
            given[_PAGES[token]] = answer[token]

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Send a request (such as ``ecs``, ``run_task``) with retries, and return the answer.
        Makes up to nine attempts within 45 s. Raises ProviderError if AWS refuses the request or
        does not answer.
        """
        return await self._repeated(service, operation, parameters, even_if_lost=True)

    async def call_without_token(
        self, service: str, operation: str, **parameters: Any
    ) -> dict[str, Any]:
        """Send a request that is not idempotent, without repeating it after a lost answer."""
        return await self._repeated(service, operation, parameters, even_if_lost=False)

    async def _repeated(
        self, service: str, operation: str, parameters: dict[str, Any], *, even_if_lost: bool
    ) -> dict[str, Any]:
        until = time.monotonic() + REPEATED_FOR_S
        renewed = False
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._once(service, operation, parameters)
            except AWSError as error:
                if error.error_code in _EXPIRED and not renewed:
                    renewed = True
                    logger.info("%s: the credentials have expired and are read again", service)
                    await self._renew()
                    continue
                pause = self.pause(attempt)
                lost = not error.error_code and not even_if_lost
                ended = attempt == ATTEMPTS or time.monotonic() + pause > until
                if not error.transient or lost or ended:
                    raise
                show = logger.info if attempt > 3 else logger.debug
                show("%s: %s; next attempt in %.1f s", error.request, error.message, pause)
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt raises or returns")

    async def _once(
        self, service: str, operation: str, parameters: dict[str, Any]
    ) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        client = await self._client(service)
        request = f"{service}:{client.meta.method_to_api_mapping[operation]}"
        self.sent[request] = self.sent.get(request, 0) + 1
        try:
            async with self._slots:
                answer: dict[str, Any] = await getattr(client, operation)(**parameters)
        except ClientError as error:
            raise refusal(error.response, request) from error
        except (BotoCoreError, OSError, TimeoutError) as error:
            raise _unanswered(error, request) from error
        return answer

    async def _client(self, service: str) -> Any:
        async with self._opening:
            if service not in self._clients:
                from aiobotocore.config import AioConfig

                session = self._library_session()
                loader = session.get_component("data_loader")
                await asyncio.to_thread(loader.load_service_model, service, "service-2")
                settings = AioConfig(
                    connect_timeout=CONNECT_TIMEOUT_S,
                    read_timeout=READ_TIMEOUT_S,
                    max_pool_connections=AT_ONCE,
                    retries={"total_max_attempts": 1, "mode": "standard"},
                )
                made = session.create_client(service, region_name=self.region, config=settings)
                self._clients[service] = await self._open.enter_async_context(made)
            return self._clients[service]

    def _library_session(self) -> Any:
        if self._session is None:
            try:
                from aiobotocore.session import get_session
            except ImportError as error:
                raise ProviderError(
                    "aiobotocore is not installed", hint="pip install aiobotocore"
                ) from error
            self._session = get_session()
            # Service descriptions are megabytes of JSON: a process reads each of them once.
            loader = _shared.setdefault("loader", self._session.get_component("data_loader"))
            self._session.register_component("data_loader", loader)
        return self._session

    async def _renew(self) -> None:
        """Drop the session, so that the next request reads the credentials again."""
        async with self._opening:
            self._session = None
            await self.close()


#: Loader of the service descriptions, shared by all connections of this process.
_shared: dict[str, Any] = {}
#: Keys that answers with another page have, and the request parameters for that page.
_PAGES = {"nextToken": "nextToken", "NextToken": "NextToken", "Marker": "Marker"}


def jittered(attempt: int) -> float:
    """Return a random pause in seconds. Its bound doubles with each attempt, up to 8 s."""
    bound = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**attempt)
    return bound * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def refusal(answer: dict[str, Any], request: str) -> AWSError:
    """Return the error for an answer with ``Error`` and ``ResponseMetadata``."""
    said = answer.get("Error") or {}
    code, message = str(said.get("Code") or ""), str(said.get("Message") or "")
    message = re.sub(r"\s*Encoded authorization failure message:.*", "", message, flags=re.DOTALL)
    message = " ".join(message.split()) or code
    status = int((answer.get("ResponseMetadata") or {}).get("HTTPStatusCode") or 0)
    if code in _WRONG or code in _EXPIRED:
        what = "have expired" if code in _EXPIRED else "are wrong"
        return AWSError(
            f"the AWS credentials {what}: {code}: {message}",
            error_code=code,
            request=request,
            hint=_LOGIN,
        )
    if code in _FORBIDDEN:
        return AWSError(
            f"this user may not {request}: {message}",
            error_code=code,
            request=request,
            hint="ask the administrator of the account for a policy that allows it; docs/cloud.md "
            "lists what is needed",
        )
    transient = code in _THROTTLED or code in _UNAVAILABLE or status >= 500
    transient = transient or "rate exceeded" in message.lower()
    return AWSError(
        f"{request}: {code}: {message}", error_code=code, request=request, transient=transient
    )


def _unanswered(error: Exception, request: str) -> ProviderError:
    from botocore import exceptions

    text = " ".join(str(error).split()) or type(error).__name__
    credentials = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.ProfileNotFound,
        exceptions.SSOError,
        exceptions.TokenRetrievalError,
    )
    if isinstance(error, credentials):
        return AWSError(
            f"there are no AWS credentials: {text}",
            error_code=type(error).__name__,
            request=request,
            hint=_LOGIN,
        )
    connection = (exceptions.HTTPClientError, exceptions.ConnectionError, OSError, TimeoutError)
    if isinstance(error, connection):
        return AWSError(f"{request}: AWS does not answer: {text}", request=request, transient=True)
    return AWSError(f"{request}: {text}", error_code=type(error).__name__, request=request)
