"""`cached`: a decorator for functions with cached results."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, ParamSpec, TypeVar, overload

from scalable.cache.calls import CachedFunction, keys_of
from scalable.cache.code import OPTIONS, options_of
from scalable.cache.errors import UnfollowedReferencesError
from scalable.cache.key import KeyOptions
from scalable.cache.outcomes import unheard
from scalable.cache.store import ResultStore
from scalable.model.deployment import CACHE_LIMIT
from scalable.settings import results_dir

logger = logging.getLogger("scalable.cache")

_P = ParamSpec("_P")
_R = TypeVar("_R")


@overload
def cached(function: Callable[_P, _R], /) -> Callable[_P, _R]: ...
@overload
def cached(
    *,
    version: Any = None,
    ignore: Iterable[str] = (),
    depends_on: Iterable[Any] = (),
    store: str | os.PathLike[str] | None = None,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...
def cached(
    function: Callable[..., Any] | None = None,
    /,
    *,
    version: Any = None,
    ignore: Iterable[str] = (),
    depends_on: Iterable[Any] = (),
    store: str | os.PathLike[str] | None = None,
) -> Callable[..., Any]:
    """Cache the results of a function across processes, including outside a session.

    For tasks, a client caches the results in its own store, as with ``cache=True``.

    Parameters
    ----------
    version
        Any value. A different value invalidates all earlier results.
    ignore
        Names of parameters that do not affect the result, such as a logger.
    depends_on
        Values, functions and :class:`scalable.File` objects that the result depends on, but that do
        not appear in the code. If given, references that cannot be followed are accepted.
    store
        Path or URL of the store for calls outside a client. The default is the user's own
        directory, ``$XDG_CACHE_HOME/scalable/results``.

    Raises
    ------
    UnstableArgumentError
        When the function is called with an argument whose content cannot be determined.

    Examples
    --------
    >>> @cached(version=2)
    ... def fit(data, order): ...
    """
    options = KeyOptions(version, tuple(ignore), tuple(depends_on))

    def decorate(own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def remembered(*args: Any, **kwargs: Any) -> Any:
            opened = _opened(os.fspath(store or results_dir()))
            try:
                key = keys_of(opened).key(own, args, kwargs, options)
            except UnfollowedReferencesError as error:
                _warn_once(str(error))
                return own(*args, **kwargs)
            with unheard():
                return CachedFunction(own, opened, key)(*args, **kwargs)

        setattr(remembered, OPTIONS, (options, remembered))
        return remembered

    return decorate if function is None else decorate(function)


def own_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function decorated by ``scalable.cached``, or the function itself."""
    if isinstance(function, MethodType):
        return MethodType(own_function(function.__func__), function.__self__)
    if options_of(function) is None:
        return function
    own: Callable[..., Any] = vars(function)["__wrapped__"]
    return own


@functools.cache
def _opened(url: str) -> ResultStore:
    return ResultStore.open(url, CACHE_LIMIT)


@functools.cache
def _warn_once(sentence: str) -> None:
    logger.warning("%s", sentence)
