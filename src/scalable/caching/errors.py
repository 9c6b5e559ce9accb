"""Errors of remembered results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scalable.errors import ScalableError


class UnstableValueError(ScalableError, ValueError):
    """A value has no content by which a later process could recognise it.

    Parameters
    ----------
    value
        The value, or a part of it.
    reason
        Why, after the name of its type.
    """

    def __init__(self, value: Any, reason: str) -> None:
        kind = type(value)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        self.reason = f"a value of type {module}{kind.__qualname__} that {reason}"
        super().__init__(self.reason)


class UnkeyedFutureError(UnstableValueError):
    """A future among the arguments is the result of a call without a key."""


class UnstableArgumentError(UnstableValueError):
    """An argument of a call has no stable content.

    Parameters
    ----------
    error
        The error of the value.
    argument
        Name of the argument.
    function
        Name of the function.
    """

    def __init__(self, error: UnstableValueError, argument: str, function: str) -> None:
        self.reason = error.reason
        ScalableError.__init__(
            self,
            f"{argument} of {function} is or holds {error.reason}: the call has no key",
            hint="give a value with content instead, name the parameter in ignore=[...], or submit "
            "the call without cache",
        )


class UnfollowedReferencesError(ScalableError):
    """A function refers to code or values that cannot be followed, so that its key is not known.

    Parameters
    ----------
    function
        Name of the function.
    sentences
        One sentence for each reference.
    """

    def __init__(self, function: str, sentences: Iterable[str]) -> None:
        self.function, self.sentences = function, tuple(sentences)
        super().__init__(
            f"results of {function} are not remembered: {'; '.join(self.sentences)}",
            hint="give depends_on=[...] with what the result depends on there",
        )


class MovableImageError(ScalableError):
    """An image is known by a name that may be given to another image.

    Parameters
    ----------
    image
        The image, as it is written.
    reason
        Why its content is not known.
    """

    def __init__(self, image: str, reason: str) -> None:
        self.image = image
        super().__init__(
            f"results of calls in image {image!r} are not remembered: {reason}",
            hint=f"write the image with its digest ({image}@sha256:...), or as a file",
        )
