"""Output of machines, in a CloudWatch log group that all clusters share."""

from __future__ import annotations

from collections.abc import Mapping

from scalable.providers.aws.api import Api, AWSError
from scalable.providers.aws.names import LOG_GROUP, SHARED

_NONE, _EXISTS = "ResourceNotFoundException", "ResourceAlreadyExistsException"
#: Number of characters after which one call reads no further page.
LONGEST = 400_000


class Logs:
    """The log group of one region, created with a retention of ``kept_days``."""

    def __init__(self, api: Api, kept_days: int) -> None:
        self._api = api
        self._kept_days = kept_days
        self._known = False

    async def exists(self) -> bool:
        groups = await self._api.pages(
            "logs", "describe_log_groups", "logGroups", logGroupNamePrefix=LOG_GROUP
        )
        return any(group["logGroupName"] == LOG_GROUP for group in groups)

    async def prepare(self) -> None:
        """Create the log group if it does not exist."""
        if self._known:
            return
        if not await self.exists():
            try:
                await self._api.call(
                    "logs", "create_log_group", logGroupName=LOG_GROUP, tags={SHARED: "logs"}
                )
            except AWSError as error:
                if error.error_code != _EXISTS:
                    raise
            await self._api.call(
                "logs",
                "put_retention_policy",
                logGroupName=LOG_GROUP,
                retentionInDays=self._kept_days,
            )
        self._known = True

    async def read(self, stream: str, since: str) -> tuple[str, str]:
        """Return the output in a stream, if it exists, after a mark, and the next mark."""
        parts: list[str] = []
        size = 0
        mark = since
        while size < LONGEST:
            given: Mapping[str, str] = {"nextToken": mark} if mark else {}
            try:
                answer = await self._api.call(
                    "logs",
                    "get_log_events",
                    logGroupName=LOG_GROUP,
                    logStreamName=stream,
                    startFromHead=True,
                    **given,
                )
            except AWSError as error:
                if error.error_code != _NONE:
                    raise
                break
            lines = [f"{event['message']}\n" for event in answer.get("events", ())]
            following = str(answer.get("nextForwardToken") or mark)
            parts += lines
            size += sum(map(len, lines))
            if following == mark or not lines:
                mark = following
                break
            mark = following
        return "".join(parts), mark
