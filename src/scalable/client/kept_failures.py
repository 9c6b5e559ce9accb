"""Tasks whose failures are values: `CallFailed` in place of an exception."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dask.utils import key_split
from distributed import Future
from distributed.core import clean_exception

from scalable.client.overviews import ShownClient
from scalable.client.routing import refuse_hidden
from scalable.dask_compat.client import KeptResult, retry_soon, state_of
from scalable.errors import ClusterError
from scalable.protocol.handlers import SchedulerCalls
from scalable.protocol.operations import CODE, RETRIED

# Retrying -----------------------------------------------------------------------------------------


class RetryingClient(ShownClient):
    """A client that does not reuse the failure of an earlier, equal task."""

    def _run_failed_again(self, keys: Iterable[Any]) -> None:
        """Retry failed tasks, since Dask would answer an equal task with the failed future."""
        failed: list[Future[Any]] = [
            Future(key, self)
            for key in keys
            if (state := self.futures.get(key)) is not None and state.status == "error"
        ]
        if failed:
            self._retry_now(failed)

    def _warn_of_retries(self, task: str | None) -> None:
        """Log that executors ignore the retry policy of the given task, if it has one."""
        if task in self._scheduler_facts.get(RETRIED, ()):
            logger.warning(
                "task %r has `retries:` or `memory_on_retry:`, which executors ignore: use "
                "submit() or map() of the client for tasks that are to be retried",
                task,
            )

    def _retry_now(self, futures: list[Future[Any]]) -> None:
        if self.asynchronous:
            retry_soon(self, futures)
        else:
            self.retry(futures)


# Kept failures ------------------------------------------------------------------------------------

logger = logging.getLogger("scalable.client")

RAISE: Final = "raise"
KEEP: Final = "keep"
#: Maximum number of characters of the exception's message in the ``repr`` of a failure.
_SHOWN = 200


@dataclass(frozen=True)
class CallFailed:
    """Value that replaces the result of a failed task. It is false in conditions.

    Attributes
    ----------
    key
        Key of the task.
    task
        Name of the task, or of its function.
    tag
        Tag of its pool, or None for a task without a tag.
    arguments
        Arguments as a string of bounded size, as in ``(2050, region='north')``, or None if they are
        unknown.
    worker
        Name of the worker of its last attempt, or None for a task that never ran.
    tries
        Number of attempts that were started.
    exception
        Exception of its last attempt.
    traceback
        The exception and its traceback as a string.
    cause
        Failure of the task that really failed, if this task did not run because it needs that
        task's result. Otherwise None.
    """

    key: str
    task: str
    tag: str | None
    arguments: str | None
    worker: str | None
    tries: int
    exception: BaseException = field(compare=False)
    traceback: str = field(compare=False)
    cause: CallFailed | None = None

    def __bool__(self) -> bool:
        """Return False, so that ``if result`` skips failures."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return the failure as strings and numbers, for a row of a table.

        Returns
        -------
        dict
            ``key``, ``task``, ``tag``, ``arguments``, ``worker``, ``tries``, ``error`` (type and
            message of the exception), ``traceback``, and ``cause``, a dictionary of the same kind
            or None.
        """
        return {
            "key": self.key,
            "task": self.task,
            "tag": self.tag,
            "arguments": self.arguments,
            "worker": self.worker,
            "tries": self.tries,
            "error": self.error,
            "traceback": self.traceback,
            "cause": None if self.cause is None else self.cause.to_dict(),
        }

    @property
    def error(self) -> str:
        """Type and message of the exception."""
        name, message = type(self.exception).__name__, str(self.exception)
        return f"{name}: {message}" if message else name

    def __repr__(self) -> str:
        error = self.error.partition("\n")[0]
        error = error if len(error) <= _SHOWN else f"{error[:_SHOWN]}..."
        because = "" if self.cause is None else f", because {self.cause.subject} failed"
        return f"<CallFailed {self.subject}{because}: {error}>"

    @property
    def subject(self) -> str:
        """Description of the task for messages: arguments, worker and number of attempts."""
        where = "" if self.worker is None else f" on worker {self.worker}"
        tries = "" if self.tries < 2 else f" in {self.tries} attempts"
        return f"{self.task}{self.arguments or ''}{where}{tries}"


class KeptFuture(KeptResult):
    """Future whose result is a :class:`CallFailed` if its task fails."""

    async def value_of_failure(self) -> CallFailed:
        client = self.client
        assert isinstance(client, FailureKeepingClient)
        return (await client._failures_of([self]))[self.key]  # noqa: SLF001 - a class of this file


class FailureKeepingClient(RetryingClient):
    """A client whose tasks may return their failures as values."""

    @staticmethod
    def _check_errors(func: Callable[..., Any], errors: str) -> None:
        if errors != RAISE:
            refuse_hidden(func, ["errors"])
        if errors not in (RAISE, KEEP):
            raise ClusterError(
                f"errors={errors!r}: errors must be {RAISE!r} or {KEEP!r}",
                hint="bind a parameter of the function with functools.partial",
            )

    def _kept(self, futures: Iterable[Future[Any]], errors: str) -> list[Future[Any]]:
        """Return the futures, made to keep failures as values if ``errors`` is ``keep``."""
        # A future of another class has its result already.
        return [
            KeptFuture(future.key, self) if errors == KEEP and type(future) is Future else future
            for future in futures
        ]

    async def _values_in_place(self, futures: Iterable[Future[Any]]) -> dict[Any, Any]:
        """Wait for futures that keep failures, and return the failures of their tasks by key."""
        kept = [future for future in futures if isinstance(future, KeptFuture)]
        for future in kept:
            await state_of(future).wait()
        failed = [future for future in kept if future.status == "error"]
        return dict(await self._failures_of(failed)) if failed else {}

    async def _failures_of(self, futures: list[KeptFuture]) -> Mapping[Any, CallFailed]:
        """Return the failures of failed tasks by key."""
        facts = await self._ask_failures([future.key for future in futures])
        found = {}
        for future, known in zip(futures, facts, strict=True):
            state = state_of(future)
            _, error, trace = clean_exception(state.exception, state.traceback)
            assert error is not None
            text = "".join(traceback.format_exception(type(error), error, trace))
            found[future.key] = _failure({"key": future.key, **known}, error, text)
        return found

    async def _ask_failures(self, keys: list[Any]) -> list[Mapping[str, Any]]:
        nothing: list[Mapping[str, Any]] = [{} for _ in keys]
        if not self._scheduler_facts.get(CODE):
            return nothing
        try:
            return await SchedulerCalls(self.scheduler).failures(keys)
        except OSError as problem:
            logger.debug("could not describe the failures of %d tasks: %r", len(keys), problem)
            return nothing


def _failure(facts: Mapping[str, Any], error: BaseException, text: str) -> CallFailed:
    cause = facts.get("cause")
    return CallFailed(
        key=str(facts["key"]),
        task=str(facts.get("task_name") or key_split(facts["key"])),
        tag=facts.get("tag"),
        arguments=facts.get("arguments"),
        worker=facts.get("worker"),
        tries=int(facts.get("tries", 1)),
        exception=error,
        traceback=text,
        cause=None if cause is None else _failure(cause, error, text),
    )
