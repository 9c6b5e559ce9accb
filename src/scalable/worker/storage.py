"""Storage of the session whose tasks a worker runs."""

from __future__ import annotations

from scalable.errors import ClusterError
from scalable.protocol.dask_seams.metadata import fact_of_scheduler
from scalable.protocol.dask_seams.worker import current_call
from scalable.protocol.lending import wait_in_call
from scalable.protocol.operations import STORAGE
from scalable.storage import Storage, no_storage


def current_storage() -> Storage:
    """Return the storage of the session whose task runs in this thread.

    It is the same as ``session.storage`` in the workflow's process: the ``default_storage`` of the
    manifest.

    Raises
    ------
    ClusterError
        When no task runs in this thread. Coroutines do not run in a thread of their own.
    ManifestError
        When the manifest names no ``default_storage``.
    """
    here = current_call()
    if here is None:
        raise ClusterError(
            "current_storage() is for calls, and none runs in this thread",
            hint="use session.storage, or pass it to the call as an argument",
        )
    worker, _ = here
    url = wait_in_call(worker.loop, fact_of_scheduler, worker.scheduler, STORAGE)
    if url is None:
        raise no_storage()
    return Storage(url)
