"""Bounds of an adaptive pool, for tools that do not wait for the scheduler to receive them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class Bounds:
    """Bounds of an adaptive pool, which are sent to its scheduler. ``await`` waits for that."""

    def __init__(
        self, order: Coroutine[Any, Any, Any], minimum: int, maximum: float | None
    ) -> None:
        self.minimum, self.maximum = minimum, maximum
        self._sent: asyncio.Task[Any] = asyncio.ensure_future(order)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._sent.__await__()
