"""`RetryingClient`: a client that runs a failed call again when an equal call is submitted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed import Future

from scalable.client.overviews import ShownClient
from scalable.protocol.dask_seams.client import retry_soon


class RetryingClient(ShownClient):
    """A client that does not answer a call with the failure of an earlier, equal call."""

    def _run_failed_again(self, keys: Iterable[Any]) -> None:
        """Retry the calls among these keys that have failed.

        Without the retry, Dask would answer an equal call with the earlier, failed future.
        """
        failed: list[Future[Any]] = [
            Future(key, self)
            for key in keys
            if (state := self.futures.get(key)) is not None and state.status == "error"
        ]
        if failed:
            self._retry_now(failed)

    def _retry_now(self, futures: list[Future[Any]]) -> None:
        if self.asynchronous:
            retry_soon(self, futures)
        else:
            self.retry(futures)
