"""`RetryingClient`: a client that runs a failed task again when an equal task is submitted."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from distributed import Future

from scalable.client.overviews import ShownClient
from scalable.protocol.dask_seams.client import retry_soon
from scalable.protocol.operations import RETRIED

logger = logging.getLogger("scalable.client")


class RetryingClient(ShownClient):
    """A client that does not answer a task with the failure of an earlier, equal task."""

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
        """Log that an executor does not follow the retry policy of its task, if it has one."""
        if task in self.scheduler_facts.get(RETRIED, ()):
            logger.warning(
                "task %r has `retries:` or `memory_on_retry:`, which executors do not follow: use "
                "submit() or map() of the client for calls that are to be tried again",
                task,
            )

    def _retry_now(self, futures: list[Future[Any]]) -> None:
        if self.asynchronous:
            retry_soon(self, futures)
        else:
            self.retry(futures)
