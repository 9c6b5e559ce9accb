"""Cache keys: equal for tasks with the same result, different for all others."""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
import platform
import shutil
import subprocess
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from scalable.cache.code import Reach
from scalable.cache.content import Contents
from scalable.cache.errors import (
    MovableImageError,
    UnfollowedReferencesError,
    UnkeyedFutureError,
    UnstableArgumentError,
    UnstableValueError,
)
from scalable.cache.file_digests import FileDigests
from scalable.protocol.code import read_source

logger = logging.getLogger("scalable.cache")

#: Version of the rules by which keys are made. Results with keys of other versions are not found.
KEY_VERSION: Final = "1"
#: Largest number of functions whose code is kept in memory.
_FUNCTIONS: Final = 512


@dataclass(frozen=True)
class CallKey:
    """Cache key of a task, and its parts."""

    #: Digest of the parts as 64 hexadecimal digits.
    digest: str
    #: Digest or short string by part: ``code:climate.run``, ``argument:scenario``,
    #: ``package:numpy``.
    parts: Mapping[str, str]
    #: Name of the function with its module.
    function: str
    #: True if arguments are results of other tasks. The key then covers the keys of these tasks.
    of_results: bool = False


@dataclass(frozen=True)
class KeyOptions:
    """Options of a function's cache keys, as the user gives them.

    Attributes
    ----------
    version
        Any value. A different value results in different keys.
    ignore
        Names of parameters that do not affect the result.
    depends_on
        Additional values, functions and files on which the result depends. If it is given,
        references that cannot be followed are accepted.
    """

    version: Any = None
    ignore: tuple[str, ...] = ()
    depends_on: tuple[Any, ...] = ()


class Signature:
    """Parameters of a function, used to name the arguments of its tasks."""

    def __init__(self, whole: inspect.Signature, *, is_own: bool = True) -> None:
        # Unless ``is_own``, a decorator passes the arguments on: it may treat named arguments
        # differently, and have defaults of its own.
        self._whole, self._is_own = whole, is_own
        parameters = whole.parameters.values()
        #: Name and default of each parameter, used if all arguments are positional.
        self._places = [(one.name, one.default) for one in parameters]
        self._is_plain = all(one.kind in _POSITIONAL for one in parameters)

    def named(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterable[tuple[str, Any]] | None:
        """Return name and value of each argument, with defaults, or None if the call is invalid."""
        if not self._is_own:
            return self._as_given(args, kwargs)
        if self._is_plain and not kwargs and len(args) <= len(self._places):
            # ``bind`` takes as long as all the rest of a small task's key.
            found = [
                (name, args[place] if place < len(args) else default)
                for place, (name, default) in enumerate(self._places)
            ]
            return None if any(value is inspect.Parameter.empty for _, value in found) else found
        try:
            bound = self._whole.bind(*args, **kwargs)
        except TypeError:  # the call will fail
            return None
        bound.apply_defaults()
        return _flat(bound)

    def _as_given(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterable[tuple[str, Any]] | None:
        """Return the given arguments by name, and the number of positional arguments."""
        try:
            bound = self._whole.bind_partial(*args, **kwargs)
        except TypeError:  # the decorator may take others
            return None
        return [*_flat(bound), ("number without a name", len(args))]


_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def _flat(bound: inspect.BoundArguments) -> Iterator[tuple[str, Any]]:
    """Yield a call's arguments. Each argument in a ``*`` or ``**`` parameter has its own name."""
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((f"{name}[{number}]", item) for number, item in enumerate(value))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            yield from ((f"{name}[{key}]", item) for key, item in sorted(value.items()))
        else:
            yield name, value


@dataclass(frozen=True)
class FunctionCode:
    """Code of a function as last read."""

    #: The parts of a key that all tasks of the function share.
    parts: Mapping[str, str]
    signature: Signature | None
    reach: Reach | None = None
    mutable: str = ""


def _no_future(_: Any) -> str | None:
    return None


@dataclass
class KeyMaker:
    """Maker of cache keys, with a cache of the functions' code."""

    #: Returns the cache key of a future's task, or None for other objects. Raises
    #: UnstableValueError if the task has no key.
    future_key: Callable[[Any], str | None] = _no_future
    files: FileDigests = field(default_factory=FileDigests)
    _known: OrderedDict[Any, FunctionCode] = field(default_factory=OrderedDict)

    def key(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: KeyOptions = KeyOptions(),
        environment: Mapping[str, str] | None = None,
        code: Mapping[str, str] | None = None,
    ) -> CallKey:
        """Return the cache key of a task.
        ``environment`` adds parts for the component's image and environment variables. ``code`` has
        parts read by another process. Raises UnstableValueError, with the argument's name, for an
        argument without stable content, and UnfollowedReferencesError as :meth:`code` does.
        """
        name = name_of(function)
        reach = Reach()
        if code is None:
            read = self.code(function, options)
            parts, signature = dict(read.parts), read.signature
        else:
            parts, signature = dict(code), _signature(function)
        contents = Contents(reach.code_id, self.future_key, self.files)
        for argument, value in _arguments(signature, args, kwargs):
            if argument.partition("[")[0] not in options.ignore:
                parts[f"argument:{argument}"] = _part(contents, value, f"argument {argument}", name)
        for number, value in enumerate(options.depends_on):
            parts[f"depends_on:{number}"] = _part(contents, value, f"depends_on[{number}]", name)
        if options.version is not None:
            parts["version"] = _part(contents, options.version, "version", name)
        for part, digest in _followed(reach, name, options).items():
            if parts.setdefault(part, digest) != digest:
                parts[f"{part} of an argument"] = digest
        parts |= environment or {}
        parts |= {"python": python_version(), "key": KEY_VERSION}
        return CallKey(digest_of(parts), parts, name, contents.has_futures)

    def code(self, function: Callable[..., Any], options: KeyOptions) -> FunctionCode:
        """Return a function's code, the same object as long as the code it reaches is unchanged.
        Raises UnfollowedReferencesError if the function refers to something that cannot be followed
        and ``depends_on`` is empty.
        """
        name = name_of(function)
        plain = isinstance(function, types.FunctionType)
        place = function, bool(options.depends_on)
        known = self._known.get(place) if plain else None
        if known is not None and known.reach is not None and known.reach.is_current():
            if known.reach.mutable_digest() == known.mutable:
                return known
            logger.debug("a value that %s refers to has changed", name)
        reach = Reach()
        contents = Contents(reach.code_id, self.future_key, self.files)
        digest = _part(contents, function, "the function", name)
        parts = {"function": digest, **_followed(reach, name, options)}
        if not plain:
            return FunctionCode(parts, _signature(function))
        known = FunctionCode(parts, _signature(function), reach, reach.mutable_digest())
        self._known[place] = known
        while len(self._known) > _FUNCTIONS:
            self._known.popitem(last=False)
        return known


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name with its module, for messages and the index of results."""
    while isinstance(function, partial):
        function = function.func
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}.{kind.__qualname__}"


def _part(contents: Contents, value: Any, what: str, function: str) -> str:
    try:
        return contents.part(value)
    except UnkeyedFutureError:
        raise
    except UnstableValueError as error:
        raise UnstableArgumentError(error, what, function) from error


def _followed(reach: Reach, name: str, options: KeyOptions) -> dict[str, str]:
    reach.follow()
    if reach.unfollowed and not options.depends_on:
        raise UnfollowedReferencesError(name, reach.unfollowed)
    versions = {package: package_version(package) for package in sorted(reach.packages)}
    packages = {f"package:{p}": version for p, version in versions.items() if version is not None}
    return {**reach.parts, **packages}


def _arguments(
    signature: Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterable[tuple[str, Any]]:
    """Return name and value of each argument. ``f(1)`` and ``f(x=1)`` give the same key."""
    named = None if signature is None else signature.named(args, kwargs)
    if named is not None:
        return named
    return [*((f"[{number}]", value) for number, value in enumerate(args)), *kwargs.items()]


def _signature(function: Callable[..., Any]) -> Signature | None:
    try:
        whole = inspect.signature(function)
        own = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # built-in functions have none
        return None
    return Signature(whole, is_own=_parameters(whole) == _parameters(own))


def _parameters(signature: inspect.Signature) -> list[tuple[str, Any, int]]:
    """Return name, kind and default of each parameter. Defaults are compared by identity."""
    return [(one.name, one.kind, id(one.default)) for one in signature.parameters.values()]


def digest_of(parts: Mapping[str, str]) -> str:
    """Return the digest of named parts in 64 hexadecimal digits."""
    written = b"".join([_written(name, digest) for name, digest in sorted(parts.items())])
    return blake2b(written, digest_size=32).hexdigest()


@lru_cache(maxsize=8192)
def _written(*texts: str) -> bytes:
    return b"".join([b"%d:%s" % (len(data), data) for data in map(str.encode, texts)])


# Packages -----------------------------------------------------------------------------------------


@cache
def package_version(module: str) -> str | None:
    """Return the version of a top-level module's package, or the digest of a module's file.
    Return None for this package, and for Python's own modules (keys contain Python's version).
    """
    if module in sys.stdlib_module_names or module in ("builtins", "scalable"):
        return None
    loaded = sys.modules.get(module)
    try:
        return f"{module} {importlib.metadata.version(module)}"
    except importlib.metadata.PackageNotFoundError:
        told = getattr(loaded, "__version__", None)
    if isinstance(told, str):
        return f"{module} {told}"
    names = _distributions().get(module)
    if names:
        versions = {name: importlib.metadata.version(name) for name in sorted(set(names))}
        return " ".join(f"{name} {version}" for name, version in versions.items())
    path = getattr(loaded, "__file__", None)
    source = read_source(path) if isinstance(path, str) else None
    if source is None:
        return "unknown"
    return f"{Path(str(path)).name} {blake2b(source, digest_size=16).hexdigest()}"


@cache
def python_version() -> str:
    """Return implementation and version of Python, and the machine type."""
    return f"{platform.python_implementation()} {platform.python_version()} {platform.machine()}"


@cache
def _distributions() -> dict[str, list[str]]:
    # This reads the files of all installed packages, which takes seconds on a slow disk.
    return dict(importlib.metadata.packages_distributions())


# Images -------------------------------------------------------------------------------------------

#: Programs that can identify the images of this machine.
PROGRAMS: Final = ("podman", "docker")
#: Seconds to wait for the answer of one of these programs.
ANSWER_S: Final = 10.0
#: Part of an image name that contains the image's digest.
_PINNED: Final = "@sha256:"


def image_identity(image: str, digest_of: Callable[[Path], str], *, here: bool) -> str:
    """Return a string that is equal only for equal images.
    It is the digest of a file's content, a name with a digest, or, if ``here`` (workers run this
    machine's images), the id from podman or docker. Raises MovableImageError if only a name is
    known.
    """
    if _PINNED in image:
        return image
    path = Path(image)
    try:
        if path.is_file() and (path.is_absolute() or path.suffix == ".sif"):
            return f"sha256:{digest_of(path)}"
    except OSError as error:
        raise MovableImageError(image, f"its file cannot be read ({error.strerror})") from error
    if here and "://" not in image and (found := _inspected(image)):
        return found
    raise MovableImageError(image, "its name may later refer to another image")


def _inspected(image: str) -> str | None:
    for program in PROGRAMS:
        if shutil.which(program) is None:
            continue
        command = [program, "image", "inspect", "--format", "{{.Id}}", "--", image]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            logger.debug("%s cannot identify image %s: %s", program, image, error)
            continue
        told = done.stdout.strip()
        if done.returncode == 0 and told:
            logger.debug("image %s is %s, according to %s", image, told, program)
            return told.removeprefix("sha256:")
    return None
