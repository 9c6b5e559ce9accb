"""`checkpoint`: the directory in which a task keeps its state for its next attempt."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from scalable.cache.checkpoints import (
    REMEMBERED,
    Checkpoint,
    Checkpoints,
    cached_call,
    checkpoint_directory,
)
from scalable.dask_compat.worker import current_call
from scalable.errors import ClusterError
from scalable.protocol.handlers import Handler, request
from scalable.protocol.lending import wait_in_call
from scalable.protocol.operations import STORAGE, WIRE
from scalable.storage import Storage, no_storage, scheme_of
from scalable.worker.bundles import running_bundle

_NO_POSITION = -1


def checkpoint() -> Path:
    """Return a directory for the task that runs in this thread. It survives the worker.

    Files that the task writes there are available to its next attempt on any worker, after a
    failure or a lost worker. If the task's result is cached, they are available to later runs too.
    The directory is empty at the first attempt, and removed when the task has succeeded.

    It belongs to one attempt at a time. If a worker was wrongly considered lost, the path no longer
    exists once another attempt has started.

    Raises
    ------
    ClusterError
        When no task runs in this thread, when the workers do not share a file system, or when a
        later attempt of the task has taken the directory over.

    Examples
    --------
    >>> state = scalable.checkpoint() / "state.json"
    >>> done = json.loads(state.read_text()) if state.exists() else {}
    """
    remembered, here = cached_call(), current_call()
    if here is None and remembered is None:
        raise ClusterError(
            "checkpoint() works only in a task, and no task runs in this thread",
            hint="call it in the function that a client submits, and pass the path to threads that "
            "the function starts; coroutines do not run in their own thread",
        )
    own: WorkerCheckpoints | None = getattr(here[0], "checkpoints", None) if here else None
    if remembered is not None:
        return remembered.path(lambda: _of_cached(own, remembered.key, remembered.url))
    if own is None:
        raise ClusterError(
            "a task without a key can have checkpoints only on the workers of a pool",
            hint="start a session, or cache the result: cache=True",
        )
    assert here is not None
    return own.path(here[1])


def _of_cached(own: WorkerCheckpoints | None, key: str, url: str) -> Checkpoint:
    if own is not None:
        return own.begin(key, remembered=True)
    if scheme_of(url) != "file":
        raise ClusterError(
            f"results are cached in {url}, which cannot contain directories for tasks",
            hint="set local_cache of the project, or store of the decorator, to a directory",
        )
    checkpoints = _opened(checkpoint_directory(url))
    checkpoints.prepare(REMEMBERED)
    return checkpoints.begin(REMEMBERED, key)


@cache
def _opened(directory: Path) -> Checkpoints:
    return Checkpoints(directory)


class WorkerCheckpoints:
    """Checkpoints of the tasks that run on one worker."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        #: Directory by key of the Dask task, and position of the task in its bundle.
        self.begun: dict[tuple[Any, int], Checkpoint] = {}

    def path(self, key: Any) -> Path:
        """Return the directory of this thread's task, which is part of the given Dask task."""
        bundle = running_bundle(key) if isinstance(key, str) else None
        position = _NO_POSITION if bundle is None else bundle.position
        if (key, position) not in self.begun:
            name = repr(key) if bundle is None else bundle.name
            self.begun[key, position] = self.begin(name)
        return self.begun[key, position].path

    def begin(self, call: str, *, remembered: bool = False) -> Checkpoint:
        """Return the directory of a new attempt of a task. Must run in the task's thread.
        ``call`` is the name of the task, or its cache key if ``remembered`` is true.
        """
        told = wait_in_call(self._worker.loop, self._ask)
        checkpoints = _opened(Path(told["directory"]))
        return checkpoints.begin(REMEMBERED if remembered else told["group"], call)

    async def _ask(self) -> dict[str, str]:
        """Request the cluster's checkpoint directory from the scheduler, which creates it."""
        answer: dict[str, str] | None = None
        scheduler = self._worker.scheduler
        if (await scheduler.identity(n_workers=0)).get(WIRE):
            answer = await request(scheduler, Handler.CHECKPOINTS)
        if answer is None:
            raise ClusterError(
                "this cluster has no checkpoints: its workers do not share the file system of the "
                "user who started it",
                hint="use a target whose workers do (local, slurm), or keep the state yourself in "
                "scalable.current_storage()",
            )
        if "fault" in answer:
            raise ClusterError(answer["fault"], hint=answer["hint"])
        return answer

    def has(self, key: Any) -> bool:
        """Return whether a Dask task other than a bundle has requested its directory."""
        return (key, _NO_POSITION) in self.begun

    def end(self, key: Any, position: int = _NO_POSITION, *, succeeded: bool) -> None:
        """Remove the directory of a task that has finished, or keep it for the next attempt."""
        begun = self.begun.pop((key, position), None) if self.begun else None
        if begun is not None:
            begun.end(succeeded=succeeded)


# Storage ------------------------------------------------------------------------------------------


def current_storage() -> Storage:
    """Return the storage of the session whose task runs in this thread.

    It is the same as ``session.storage`` in the workflow's process: the ``default_storage`` of the
    manifest.

    Raises
    ------
    ClusterError
        If no task runs in this thread. A coroutine does not run in its own thread.
    ManifestError
        If the manifest has no ``default_storage``.
    """
    here = current_call()
    if here is None:
        raise ClusterError(
            "current_storage() works only in a task, and no task runs in this thread",
            hint="use session.storage, or pass it to the task as an argument",
        )
    worker, _ = here
    url = wait_in_call(worker.loop, worker.scheduler.get_metadata, keys=[STORAGE], default=None)
    if url is None:
        raise no_storage()
    return Storage(url)
