"""Restoration of errors that lose their message when pickled with their traceback.

The library that pickles tracebacks rebuilds an error without its constructor. Some errors of Python
have state that only their constructor sets from ``args``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

_WITH_STATE = (
    SyntaxError,
    UnicodeDecodeError,
    UnicodeEncodeError,
    UnicodeTranslateError,
    SystemExit,
    StopIteration,
)

Error = TypeVar("Error")


def restored(error: Error) -> Error:
    """Restore the messages of an unpickled error and of the errors in its chain of causes."""
    seen: set[int] = set()
    found: list[object] = [error]
    while found:
        each = found.pop()
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        for kind in _WITH_STATE:
            if isinstance(each, kind):
                initialize: Any = kind.__init__
                with suppress(TypeError):  # the arguments of a subclass with its own constructor
                    initialize(each, *each.args)
        inner = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        found += [each.__cause__, each.__context__, *inner]
    return error
