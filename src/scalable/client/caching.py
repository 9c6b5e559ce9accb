"""`TaskCache`: a client's tasks are answered with cached results, which are counted."""

from __future__ import annotations

import inspect
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from dask.utils import funcname, key_split
from distributed import Future
from distributed.comm.core import CommClosedError

from scalable.cache.calls import CachedFunction, Purpose, call_cached, own_function
from scalable.cache.code import options_of
from scalable.cache.errors import (
    MovableImageError,
    PendingFutureError,
    UnfollowedReferencesError,
    UnstableValueError,
)
from scalable.cache.files import digest_of_file
from scalable.cache.key import (
    KEY_VERSION,
    KeyMaker,
    KeyOptions,
    image_identity,
    name_of,
)
from scalable.cache.resume import NOT_ASKED, ResumableFunction, results_of
from scalable.cache.store import Found, ResultStore
from scalable.client.routing import DASK_KEYWORDS, refuse_hidden
from scalable.dask_compat.client import (
    HookedClient,
    facts_of,
    is_known,
    known_future,
    known_result,
    send_to_scheduler,
)
from scalable.errors import ClusterError
from scalable.model.cache_settings import CacheSettings
from scalable.protocol.operations import CARRIES, FOUND, REMEMBERING, WIRE
from scalable.settings import results_dir
from scalable.storage import scheme_of

logger = logging.getLogger("scalable.client")

#: Seconds for which cache hits are counted before a message to the scheduler.
TELL_AFTER_S: Final = 1.0
#: Number of task names and tags that one message distinguishes. More are reported as others.
TOLD_NAMES: Final = 200
OTHERS: Final = ("(other names)", "")


class FoundCalls:
    """Counter of a client's cache hits, reported to the scheduler at most once a second."""

    def __init__(self, client: HookedClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        #: Number of hits, and seconds that they saved, by name and tag.
        self._groups: dict[tuple[str, str], tuple[int, float]] = {}

    def add(self, name: str, tag: str, saved_s: float) -> None:
        """Count a cache hit. The ``tag`` may be ""."""
        with self._lock:
            is_first = not self._groups
            is_told = (name, tag) in self._groups or len(self._groups) < TOLD_NAMES
            told_as = (name, tag) if is_told else OTHERS
            calls, saved = self._groups.get(told_as, (0, 0.0))
            self._groups[told_as] = calls + 1, saved + saved_s
        if is_first:
            loop: Any = self._client.loop
            loop.add_callback(loop.call_later, TELL_AFTER_S, self.tell)

    def tell(self) -> None:
        """Send the counted hits to the scheduler. Runs in the client's event loop."""
        with self._lock:
            groups, self._groups = self._groups, {}
        # A scheduler of another kind, or of an earlier version, cannot handle the message.
        if groups and facts_of(self._client).get(WIRE):
            calls = [[*place, *group] for place, group in groups.items()]
            with suppress(CommClosedError):  # between two connections: it would not be read
                send_to_scheduler(self._client, {"op": FOUND, "calls": calls})


#: Largest size in bytes of a result that the client itself reads. A worker reads larger ones.
READ_HERE: Final = 1 << 16


@dataclass(frozen=True)
class CachedCall:
    """Task whose result is cached."""

    #: Function to send in place of the user's.
    function: CachedFunction
    #: Key of the Dask task, equal for equal tasks of all clients of a cluster, or None if a worker
    #: makes the key.
    key: str | None
    #: The result, if it was found here.
    found: Found | None


class TaskCache:
    """Results of earlier tasks, for the tasks of one client."""

    def __init__(self, client: HookedClient, settings: CacheSettings | None) -> None:
        # Without ``settings``, those of the scheduler apply.
        self._client, self._given = client, settings
        self._hits = FoundCalls(client)
        #: Report the counted cache hits to the scheduler.
        self.report = self._hits.tell
        self._keys = KeyMaker(result_of)
        self._store: ResultStore | None = None
        self._told: set[tuple[str, str]] = set()
        self._images: dict[str, str | MovableImageError] = {}
        #: Last functions that were sent for each purpose.
        self._cached: dict[Purpose, CachedFunction] = {}
        self._resumable: dict[Purpose, ResumableFunction] = {}

    def _settings(self) -> CacheSettings:
        if self._given is None:
            told = facts_of(self._client).get(REMEMBERING)
            self._given = CacheSettings.from_message(told) if told else CacheSettings()
        return self._given

    def _is_remote(self) -> bool:
        """Return whether there are workers without the client's file system."""
        return bool(facts_of(self._client).get(CARRIES))

    def _warn(self, kind: str, about: str, message: object) -> None:
        if (kind, about) not in self._told:
            self._told.add((kind, about))
            logger.warning("%s", message)

    def concerns(self, func: Callable[..., Any], purpose: Purpose) -> bool:
        """Return whether results are stored for a function that is submitted without ``cache``."""
        keeps = self._settings().keeping is not None
        return keeps or self._options(func, purpose, None) is not None

    def _options(
        self, function: Callable[..., Any], purpose: Purpose, cache: bool | KeyOptions | None
    ) -> KeyOptions | None:
        """Return the options of a task's cache key, or None if its result is not cached.
        If ``cache`` is None, the function's decorator and the manifest decide. A task without a
        name has the entry of its function's name, if it is for the same pool.
        """
        if isinstance(cache, KeyOptions):
            return cache
        given = options_of(getattr(function, "__func__", function))
        if cache is False or (
            cache is None and given is None and not self._is_listed(function, purpose)
        ):
            return None
        if cache not in (None, True):
            raise ClusterError(
                f"cache={cache!r}: cache must be True, False or KeyOptions",
                hint="write cache=True",
            )
        return given or KeyOptions()

    def _is_listed(self, function: Callable[..., Any], purpose: Purpose) -> bool:
        """Return whether a task has ``cache: true`` in the manifest."""
        listed = self._settings().tasks
        if not listed:
            return False
        if purpose.task:
            return purpose.task in listed
        while isinstance(function, partial):
            function = function.func
        name = getattr(function, "__name__", None)  # some callables have none
        return bool(purpose.tag) and listed.get(name or "") == purpose.tag

    # Tasks ----------------------------------------------------------------------------------------

    def call(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        purpose: Purpose,
        cache: bool | KeyOptions | None,
    ) -> CachedCall | None:
        """Return a task with its cache key and any cached result, or None if it is not cached.
        Warns once if it has no key. Raises UnstableArgumentError for an unstable argument.
        """
        if cache is not None:
            refuse_hidden(func, ["cache"])
        options = self._options(func, purpose, cache)
        if options is None or kwargs.get("actor") or kwargs.get("actors"):
            return None
        own = own_function(func)
        named = {name: value for name, value in kwargs.items() if name not in DASK_KEYWORDS}
        store = self._results()
        try:
            environment = self._environment(purpose.tag)
            key = self._keys.key(own, args, named, options, environment)
        except PendingFutureError:
            return CachedCall(self._keyed_by_worker(own, options, purpose), None, None)
        except (UnfollowedReferencesError, MovableImageError) as error:
            self._warn_of_no_key(error)
            return None
        found = None
        if scheme_of(store.url) == "file":  # else a worker looks, while other tasks run
            found = store.get(key, at_most=READ_HERE, function=own)
        sent = CachedFunction(own, store, key, purpose=purpose)
        name = purpose.task or funcname(own)
        return CachedCall(sent, f"{name}-c{KEY_VERSION}.{key.digest}", found)

    def known(self, key: Any, found: Found, purpose: Purpose) -> Future[Any]:
        """Return a finished future for a cached result."""
        if key in self._client.futures:
            return Future(key, self._client)
        self._hits.add(purpose.task or key_split(key), purpose.tag, found.entry.cost_s)
        return known_future(self._client, key, found.value())

    def map(
        self,
        func: Callable[..., Any],
        iterables: Iterable[Iterable[Any]],
        kwargs: Mapping[str, Any],
        purpose: Purpose,
        cache: bool | KeyOptions | None,
        send: Callable[..., list[Future[Any]]],
    ) -> list[Future[Any]]:
        """Return the futures of many tasks, and send only tasks without a cached result."""
        task = purpose.task or None
        # Most maps are not cached: they do not pay for each row.
        if self._options(func, purpose, cache) is None:
            return send(self.resumable(func, kwargs, purpose, cache), *iterables, key=task)
        rows = list(zip(*iterables, strict=False))
        futures: list[Future[Any] | None] = []
        missing: list[CachedCall] = []
        for row in rows:
            call = self.call(func, row, kwargs, purpose, cache)
            if call is None:
                own = self.resumable(func, kwargs, purpose, cache)
                return send(own, *zip(*rows, strict=True), key=task)
            found = call.found
            futures.append(None if found is None else self.known(call.key, found, purpose))
            if found is None:
                missing.append(call)
        if not missing:
            return [future for future in futures if future is not None]
        keys = [call.key or f"{task or funcname(func)}-{uuid.uuid4()}" for call in missing]
        sent_rows = [row for row, future in zip(rows, futures, strict=True) if future is None]
        columns = zip(*sent_rows, strict=True)
        sent = iter(send(call_cached, [c.function for c in missing], *columns, key=keys))
        return [next(sent) if future is None else future for future in futures]

    def function(
        self, func: Callable[..., Any], purpose: Purpose, cache: bool | KeyOptions | None
    ) -> Callable[..., Any]:
        """Return the function to send. The workers compute the cache keys of its tasks."""
        options = self._options(func, purpose, cache)
        if options is None:
            return self.resumable(func, {}, purpose, cache)
        try:
            return self._keyed_by_worker(own_function(func), options, purpose)
        except (UnfollowedReferencesError, MovableImageError) as error:
            self._warn_of_no_key(error)
            return self.resumable(func, {}, purpose, cache)

    def nodes(
        self,
        graph: Mapping[Any, Any],
        tags: Mapping[Any, str | None],
        purpose: Purpose,
        cache: bool | KeyOptions | None,
    ) -> Mapping[Any, Any]:
        """Return a plain graph whose tasks use the cache if that was requested.
        ``tags`` contains the tags of nodes that have another tag than ``purpose``.
        """

        def node(name: Any, raw: Any) -> Any:
            if not (type(raw) is tuple and raw and callable(raw[0])):
                return raw
            own = replace(purpose, tag=tags.get(name, purpose.tag) or "")
            return (self.function(raw[0], own, cache), *raw[1:])

        return {name: node(name, raw) for name, raw in graph.items()}

    # Cached results -------------------------------------------------------------------------------

    def _keyed_by_worker(
        self, own: Callable[..., Any], options: KeyOptions, purpose: Purpose
    ) -> CachedFunction:
        store, code = self._results(), self._keys.parts_to_send(own, options)
        last = self._cached.get(purpose)
        if last is not None and (last.function, last.code, last.options) == (own, code, options):
            return last
        environment = self._environment(purpose.tag)
        made = CachedFunction(own, store, None, options, environment, code, purpose)
        self._cached[purpose] = made
        return made

    def _environment(self, tag: str) -> Mapping[str, str]:
        """Return the environment part of a tag's cache keys. Images are identified by content."""
        says = self._settings()
        parts = says.environments.get(tag, {})
        image = parts.get("image")
        if image is None:
            return parts
        return {**parts, "image": self._identity(image, here=says.images_here)}

    def _identity(self, image: str, *, here: bool) -> str:
        """Return the identity of an image. External programs run only once for each image."""
        known = self._images.get(image)
        if known is None:
            digests = self._results().file_digests
            try:
                known = image_identity(image, lambda file: digest_of_file(file, digests), here=here)
            except MovableImageError as error:
                known = error
            if not Path(image).is_file():  # a file may change, and its digest is kept elsewhere
                self._images[image] = known
        if isinstance(known, MovableImageError):
            raise known
        return known

    def _results(self) -> ResultStore:
        """Return the store of results. Raises ClusterError if workers cannot reach it."""
        if self._store is None:
            url = self._settings().url or str(results_dir())
            if self._is_remote() and scheme_of(url) == "file":
                raise ClusterError(
                    f"results cannot be cached in {url}: this cluster has workers that do not "
                    "share this file system",
                    hint="set default_storage of the project to a bucket",
                )
            self._store = ResultStore.open(url, self._settings().limit)
            self._keys.files = self._store.file_digests
            logger.debug("results are cached in %s", self._store.url)
        return self._store

    def _warn_of_no_key(self, error: UnfollowedReferencesError | MovableImageError) -> None:
        about = error.image if isinstance(error, MovableImageError) else error.function
        self._warn("cached", about, error)

    # Results for resuming -------------------------------------------------------------------------

    def resumable(
        self,
        func: Callable[..., Any],
        kwargs: Mapping[str, Any],
        purpose: Purpose,
        cache: bool | KeyOptions | None,
    ) -> Callable[..., Any]:
        """Return the function to send: ``func``, wrapped if its results are kept for resuming.
        In a resumed run, a task with ``cache=False`` is wrapped, too, to be counted. It stays the
        same object until its code changes.
        """
        if cache is False:
            func = own_function(func)  # a decorated one would use this user's own store
        keeping = self._settings().keeping
        if keeping is None or kwargs.get("actor") or kwargs.get("actors"):
            return func
        if cache is False and keeping.resumed is None:
            return func
        if inspect.iscoroutinefunction(func) or isinstance(func, ResumableFunction):
            return func
        if self._is_remote():
            message = "results are not kept for resuming: some workers are without this file system"
            self._warn("kept", "", message)
            return func
        environment = self._settings().environments.get(purpose.tag, {})
        code, unkept = (None, NOT_ASKED) if cache is False else self._code_to_keep(func)
        last = self._resumable.get(purpose)
        if (
            last is not None
            and (last.code, last.unkept) == (code, unkept)
            and last.function is func
        ):
            return last
        results = results_of(keeping.run, keeping.resumed, keeping.limit, keeping.despite_code)
        made = ResumableFunction(func, results, code, environment, purpose, unkept)
        self._resumable[purpose] = made
        return made

    def _code_to_keep(self, function: Callable[..., Any]) -> tuple[Mapping[str, str] | None, str]:
        """Return the key parts of a function's code, and a reason against storing or ``""``."""
        try:
            return self._keys.parts_to_send(function, KeyOptions()), ""
        except UnfollowedReferencesError as error:
            reason = "; ".join(error.sentences)
        except UnstableValueError as error:
            reason = f"it holds {error.reason}"
        name = name_of(function)
        self._warn("kept", name, f"results of {name} are not kept: {reason}")
        return None, reason


def result_of(value: Any) -> Any:
    """Return the result of a future, if it is in this process, and other objects themselves."""
    if not isinstance(value, Future):
        return value
    if not is_known(value):
        raise PendingFutureError(value, "is the result of a task that a worker has")
    return known_result(value)
