"""`RememberedCalls`: the tasks of one client whose results are looked up before they are sent."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dask.utils import funcname
from distributed import Future

from scalable.caching.calls import Purpose, RememberedFunction
from scalable.caching.code import options_of
from scalable.caching.decorator import own_function
from scalable.caching.errors import (
    MovableImageError,
    UnfollowedReferencesError,
    UnkeyedFutureError,
)
from scalable.caching.file_digests import digest_of_file
from scalable.caching.images import image_identity
from scalable.caching.key import KEY_VERSION, KeyMaker, KeyOptions
from scalable.caching.outcomes import Found
from scalable.caching.store import ResultStore
from scalable.errors import ClusterError
from scalable.settings import results_dir
from scalable.spec.remembering import Remembering
from scalable.storage import scheme_of

logger = logging.getLogger("scalable.client")

#: Largest size in bytes of a result that the client itself reads. A worker reads larger ones.
READ_HERE: Final = 1 << 16
#: Keywords of a task that are Dask's, not the function's.
DASK_KEYWORDS: Final = frozenset(
    {
        "actor",
        "actors",
        "allow_other_workers",
        "fifo_timeout",
        "priority",
        "resources",
        "retries",
        "workers",
    }
)
_KEY = re.compile(r"-c(\w+)\.([0-9a-f]{64})")


@dataclass(frozen=True)
class RememberedCall:
    """Task whose result is cached."""

    #: Function to send in place of the user's.
    function: RememberedFunction
    #: Key of the Dask task, equal for equal tasks of all clients of a cluster, or None if a worker
    #: makes the key.
    key: str | None
    #: The result, if it was found here.
    found: Found | None


class RememberedCalls:
    """Maker of the cache keys of one client's tasks, and finder of their results."""

    def __init__(
        self, remembering: Callable[[], Remembering], is_remote: Callable[[], bool]
    ) -> None:
        # ``remembering`` returns the cache settings of the cluster's manifest. ``is_remote``
        # returns whether there are workers without the client's file system.
        self._remembering, self._is_remote = remembering, is_remote
        self._keys = KeyMaker(key_of_future)
        self._store: ResultStore | None = None
        self._told: set[str] = set()
        self._images: dict[str, str | MovableImageError] = {}
        #: Last function for each purpose for which the workers make keys.
        self._functions: dict[Purpose, RememberedFunction] = {}

    def options(
        self, function: Callable[..., Any], task: str | None, cache: bool | KeyOptions | None
    ) -> KeyOptions | None:
        """Return the options of a task's cache key, or None if its result is not cached.

        A ``cache`` of None leaves that to the function's decorator and the manifest.
        """
        if isinstance(cache, KeyOptions):
            return cache
        given = options_of(getattr(function, "__func__", function))
        if cache is False or (
            cache is None and given is None and task not in self._remembering().tasks
        ):
            return None
        if cache not in (None, True):
            raise ClusterError(
                f"cache={cache!r}: a call takes True, False or KeyOptions for cache",
                hint="write cache=True",
            )
        return given or KeyOptions()

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: KeyOptions,
        purpose: Purpose,
    ) -> RememberedCall | None:
        """Return a task with its cache key, and its result if there is one.

        It is None, after one warning, if the function refers to something that cannot be followed,
        or if only a name of its image is known. Raises UnstableArgumentError for an argument
        without stable content.
        """
        own = own_function(function)
        named = {name: value for name, value in kwargs.items() if name not in DASK_KEYWORDS}
        store = self.store()
        try:
            environment = self._environment(purpose.tag)
            key = self._keys.key(own, args, named, options, environment)
        except UnkeyedFutureError:
            return RememberedCall(self._sent(own, options, purpose), None, None)
        except (UnfollowedReferencesError, MovableImageError) as error:
            self._warn(error)
            return None
        found = self._found(store, key.digest, own)
        name = purpose.task or funcname(own)
        sent = RememberedFunction(own, store, key, purpose=purpose)
        return RememberedCall(sent, f"{name}-c{KEY_VERSION}.{key.digest}", found)

    def function(
        self, function: Callable[..., Any], options: KeyOptions, purpose: Purpose
    ) -> Callable[..., Any]:
        """Return a function to send in place of another, for tasks whose keys the workers make.

        It is the same object until code changes that the function reaches. A function that refers
        to something that cannot be followed is returned unchanged, with one warning.
        """
        try:
            return self._sent(own_function(function), options, purpose)
        except (UnfollowedReferencesError, MovableImageError) as error:
            self._warn(error)
            return function

    def _sent(
        self, own: Callable[..., Any], options: KeyOptions, purpose: Purpose
    ) -> RememberedFunction:
        store, code = self.store(), self._keys.code(own, options).parts
        last = self._functions.get(purpose)
        if last is not None and (last.function, last.code, last.options) == (own, code, options):
            return last
        environment = self._environment(purpose.tag)
        made = RememberedFunction(own, store, None, options, environment, code, purpose)
        self._functions[purpose] = made
        return made

    def _environment(self, tag: str) -> Mapping[str, str]:
        """Return the environment parts of a tag's keys, in which content identifies an image."""
        says = self._remembering()
        parts = says.environments.get(tag, {})
        image = parts.get("image")
        if image is None:
            return parts
        return {**parts, "image": self._identity(image, here=says.images_here)}

    def _identity(self, image: str, *, here: bool) -> str:
        """Return the identity of an image. Programs run once for each image."""
        known = self._images.get(image)
        if known is None:
            digests = self.store().file_digests
            try:
                known = image_identity(image, lambda file: digest_of_file(file, digests), here=here)
            except MovableImageError as error:
                known = error
            if not Path(image).is_file():  # a file may change, and its digest is kept elsewhere
                self._images[image] = known
        if isinstance(known, MovableImageError):
            raise known
        return known

    def _warn(self, error: UnfollowedReferencesError | MovableImageError) -> None:
        about = error.image if isinstance(error, MovableImageError) else error.function
        if about not in self._told:
            self._told.add(about)
            logger.warning("%s", error)

    def store(self) -> ResultStore:
        """Return the store of results.

        Raises ClusterError if workers do not share this process's file system and the project has
        no storage.
        """
        if self._store is None:
            url = self._remembering().url or str(results_dir())
            if self._is_remote() and scheme_of(url) == "file":
                raise ClusterError(
                    f"results cannot be remembered in {url}: this cluster has workers that do not "
                    "share this file system",
                    hint="name a bucket as default_storage of the project",
                )
            self._store = ResultStore.open(url, self._remembering().limit)
            self._keys.files = self._store.file_digests
            logger.debug("results are remembered in %s", self._store.url)
        return self._store

    @staticmethod
    def _found(store: ResultStore, digest: str, own: Callable[..., Any]) -> Found | None:
        if scheme_of(store.url) != "file":
            return None  # a worker looks in the bucket, while other tasks run
        return store.get(digest, at_most=READ_HERE, function=own)


def key_of_future(value: Any) -> str | None:
    """Return the digest of a future's cache key, or None for other objects.

    Raises UnkeyedFutureError if the future's task has no key.
    """
    if not isinstance(value, Future):
        return None
    match = _KEY.search(str(value.key))
    if match is None or match.end() != len(str(value.key)):
        raise UnkeyedFutureError(value, "is the result of a call without a key")
    return match[2] if match[1] == KEY_VERSION else match[0]
