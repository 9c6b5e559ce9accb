"""Errors of the result cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scalable.errors import ScalableError


class UnstableValueError(ScalableError, ValueError):
    """A value has no stable content by which a later process could recognise it."""

    def __init__(self, value: Any, reason: str) -> None:
        kind = type(value)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        self.reason = f"a value of type {module}{kind.__qualname__} that {reason}"
        super().__init__(self.reason)


class PendingFutureError(UnstableValueError):
    """A future among the arguments has its result in another process."""


class UnstableArgumentError(UnstableValueError):
    """An argument of a task has no stable content."""

    def __init__(self, error: UnstableValueError, argument: str, function: str) -> None:
        self.reason = error.reason
        ScalableError.__init__(
            self,
            f"{argument} of {function} is or holds {error.reason}: the task has no key",
            hint="pass another kind of value, list the parameter in ignore=[...], or submit "
            "the task without cache",
        )


class UnfollowedReferencesError(ScalableError):
    """A function refers to code or values that cannot be followed, so it has no cache key."""

    def __init__(self, function: str, sentences: Iterable[str]) -> None:
        self.function, self.sentences = function, tuple(sentences)
        super().__init__(
            f"results of {function} are not cached: {'; '.join(self.sentences)}",
            hint="pass files as scalable.File, or list its inputs in depends_on=[...]",
        )


class MovableImageError(ScalableError):
    """An image name may later refer to another image."""

    def __init__(self, image: str, reason: str) -> None:
        self.image = image
        super().__init__(
            f"results of tasks in image {image!r} are not cached: {reason}",
            hint=f"name the image by its digest ({image}@sha256:...), or use an image file",
        )
