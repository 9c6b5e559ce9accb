"""Seams of a worker that shares the memory of its results."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

from distributed import Worker
from distributed.comm.core import Comm
from distributed.protocol.serialize import deserialize, serialize
from distributed.utils import ensure_memoryview, nbytes, offload

from scalable.dask_compat.facts import Seams, accepts, declares, mentions
from scalable.dask_compat.shared_frames import SharingTCP
from scalable.protocol import shared_memory
from scalable.protocol.messages import Pickled
from scalable.protocol.shared_memory import LEAST

logger = logging.getLogger("scalable.worker")

seams = Seams("worker that shares results")

_WORKER = "distributed.worker:Worker"
#: Classes whose objects are unchanged by pickling and loading.
_PLAIN = frozenset(
    {
        ("numpy", "ndarray"),
        ("pandas", "DataFrame"),
        ("pandas", "Series"),
        ("pandas.core.frame", "DataFrame"),
        ("pandas.core.series", "Series"),
    }
)


@seams.relies_on(
    declares(f"{_WORKER}.get_data", "self", "comm", "keys", "who", "serializers"),
    mentions(f"{_WORKER}.get_data", "data", "write"),
    accepts("distributed.protocol.serialize:serialize", 1),
    accepts("distributed.protocol.serialize:deserialize", 2),
)
class SharingWorker(Worker):
    """A worker that moves a result into shared memory once, at another process's first request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._moving: dict[Any, asyncio.Future[Any]] = {}

    async def get_data(
        self, comm: Comm, keys: Collection[str], who: str | None = None, serializers: Any = None
    ) -> Any:
        if isinstance(comm, SharingTCP) and comm.shares_memory:
            for key in keys:
                await self._move(key)
        return await super().get_data(comm, keys, who, serializers)

    async def _move(self, key: Any) -> None:
        """Move the large buffers of a result into shared memory, once for all requests."""
        if key not in self._moving:
            self._moving[key] = asyncio.ensure_future(self._moved(key))
        try:
            await asyncio.shield(self._moving[key])
        finally:
            if key in self._moving and self._moving[key].done():
                del self._moving[key]

    async def _moved(self, key: Any) -> None:
        value = self.data.get(key)
        if not _is_plain(value):
            return
        try:
            moved = await offload(in_shared_memory, value)
        except (OSError, MemoryError) as error:  # such as a limit on the size of this process
            logger.info("the result %s is sent as it is: %s", key, error)
            return
        if moved is not None and self.data.get(key) is value:
            self.data[key] = moved


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is dict:  # the results of a bundle
        return all(type(each) is Pickled for each in value.values())
    return kind is Pickled or (kind.__module__, kind.__qualname__) in _PLAIN


def in_shared_memory(value: Any) -> Any:
    """Return a value with its large buffers in shared memory, or None if none was moved."""
    header, frames = serialize(value)
    moved = False
    for place, frame in enumerate(frames):
        # Bytes are part of the pickle, which is not kept once it is loaded.
        if nbytes(frame) <= LEAST or type(frame) is bytes:
            continue
        data = ensure_memoryview(frame)
        if shared_memory.is_shared(data) or (found := shared_memory.shared(data)) is None:
            continue
        segment, start = found
        frames[place] = segment.view()[start : start + data.nbytes]
        moved = True
    return deserialize(header, frames) if moved else None
