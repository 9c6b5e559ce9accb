"""Cache keys: equal for tasks with the same result, different for all others."""

from __future__ import annotations

import decimal
import inspect
import locale
import logging
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
    PendingFutureError,
    UnfollowedReferencesError,
    UnstableArgumentError,
    UnstableValueError,
)
from scalable.cache.files import FileDigests
from scalable.cache.packages import packages_of, python_version

logger = logging.getLogger("scalable.cache")

#: Version of the rules by which keys are made. Results with keys of other versions are not found.
KEY_VERSION: Final = "2"
#: Start of the names of parts that are about files that code reads. They are not in keys.
_READS: Final = "reads:"
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
        self._named = {one.name for one in parameters if one.kind in _BY_NAME} if is_own else set()

    def collected(self, names: Iterable[str]) -> list[str]:
        """Return the named arguments that the function gets as a dict, whose order it can see."""
        return [name for name in names if name not in self._named]

    def default(self, name: str) -> Any:
        """Return a parameter's default, or ``Parameter.empty``."""
        return dict(self._places).get(name, inspect.Parameter.empty)

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


_EITHER: Final = inspect.Parameter.POSITIONAL_OR_KEYWORD
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, _EITHER)
_BY_NAME: Final = (_EITHER, inspect.Parameter.KEYWORD_ONLY)


def _flat(bound: inspect.BoundArguments) -> Iterator[tuple[str, Any]]:
    """Yield a call's arguments. Each argument in a ``*`` or ``**`` parameter has its own name."""
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((f"{name}[{number}]", item) for number, item in enumerate(value))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            yield from ((f"{name}[{key}]", item) for key, item in value.items())
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


@dataclass
class KeyMaker:
    """Maker of cache keys, with a cache of the functions' code."""

    #: Returns the result of a future, and other objects themselves. Raises PendingFutureError if
    #: the result is not in this process.
    stand_in: Callable[[Any], Any] = lambda value: value
    files: FileDigests = field(default_factory=FileDigests)
    #: True if arguments may have been sent by other processes; see :class:`Contents`.
    as_sent: bool = False
    _known: OrderedDict[Any, FunctionCode] = field(default_factory=OrderedDict)
    #: Code of arguments' classes, by what they refer to, with the digest of its mutable values.
    _of_arguments: OrderedDict[Any, tuple[Reach, str]] = field(default_factory=OrderedDict)

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
            parts, signature = {**read.parts, **_settings(name, options)}, read.signature
        else:
            parts, signature = dict(code), _signature(function)
        contents = Contents(reach.held_id, self.stand_in, self.files, as_sent=self.as_sent)
        parts |= _inputs(contents, name, options, signature, args, kwargs)
        for part, digest in _followed(self._known_reach(reach), name, options).items():
            if parts.setdefault(part, digest) != digest:
                parts[f"{part} of an argument"] = digest
        reads = [part for part in parts if part.startswith(_READS)]
        if reads and not contents.has_files and not options.depends_on:
            raise UnfollowedReferencesError(name, [one.removeprefix(_READS) for one in reads])
        for part in reads:
            del parts[part]
        parts |= environment or {}
        parts |= {"python": python_version(), "key": KEY_VERSION}
        return CallKey(digest_of(parts), parts, name)

    def _known_reach(self, reach: Reach) -> Reach:
        """Return an earlier reach of the same classes if it is unchanged, or this one."""
        if not reach.waits_for_classes():  # a function may hold large values: do not keep it
            return reach
        place = reach.references()
        known, mutable = self._of_arguments.get(place, (None, ""))
        if known is not None and known.is_current() and known.mutable_digest() == mutable:
            return known
        reach.follow()
        self._of_arguments[place] = (reach, reach.mutable_digest())
        while len(self._of_arguments) > _FUNCTIONS:
            self._of_arguments.popitem(last=False)
        return reach

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
        contents = Contents(reach.held_id, self.stand_in, self.files)
        digest = _part(contents, function, "the function", name)
        parts = {"function": digest, **_followed(reach, name, options)}
        if not plain:
            return FunctionCode(parts, _signature(function))
        known = FunctionCode(parts, _signature(function), reach, reach.mutable_digest())
        self._known[place] = known
        while len(self._known) > _FUNCTIONS:
            self._known.popitem(last=False)
        return known

    def parts_to_send(self, function: Callable[..., Any], options: KeyOptions) -> dict[str, str]:
        """Return the parts of a key that do not depend on arguments: of the code and the settings.
        A worker that gets them makes the same key as this process. Raises as :meth:`code` does.
        """
        return {**self.code(function, options).parts, **_settings(name_of(function), options)}


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name with its module, for messages and the index of results."""
    while isinstance(function, partial):
        function = function.func
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}.{kind.__qualname__}"


def _inputs(
    contents: Contents,
    name: str,
    options: KeyOptions,
    signature: Signature | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> dict[str, str]:
    """Return the parts of a key that a function's code does not have."""
    parts: dict[str, str] = {}
    for argument, value in _arguments(signature, args, kwargs):
        if argument.partition("[")[0] in options.ignore:
            continue
        if type(value) is object and (
            signature is None or value is not signature.default(argument)
        ):
            error = UnstableValueError(value, "differs from others only by its identity")
            raise UnstableArgumentError(error, f"argument {argument}", name)
        parts[f"argument:{argument}"] = _part(contents, value, f"argument {argument}", name)
    if len(kwargs) > 1:
        order = [*kwargs] if signature is None else signature.collected(kwargs)
        order = [one for one in order if one not in options.ignore]
        if len(order) > 1:
            parts["order of named arguments"] = contents.part(order)
    for number, value in enumerate(options.depends_on):
        parts[f"depends_on:{number}"] = _part(contents, value, f"depends_on[{number}]", name)
    if options.version is not None:
        parts["version"] = _part(contents, options.version, "version", name)
    return parts


def _settings(function: str, options: KeyOptions) -> dict[str, str]:
    """Return the parts of a key that stand for the settings of this process."""
    reach = Reach()
    contents = Contents(reach.held_id)
    parts = {
        f"setting:{name}": _part(contents, value, f"the setting {name}", function)
        for name, value in settings().items()
    }
    return {**parts, **_followed(reach, function, options)} if parts else parts


def _part(contents: Contents, value: Any, what: str, function: str) -> str:
    try:
        return contents.part(value)
    except PendingFutureError:
        raise
    except UnstableValueError as error:
        raise UnstableArgumentError(error, what, function) from error


def _followed(reach: Reach, name: str, options: KeyOptions) -> dict[str, str]:
    reach.follow()
    if reach.unfollowed and not options.depends_on:
        raise UnfollowedReferencesError(name, reach.unfollowed)
    packages = {
        f"package:{name}": identity
        for module in sorted(reach.packages)
        for name, identity in packages_of(module).items()
    }
    return {**reach.parts, **packages, **{f"{_READS}{one}": "" for one in reach.reads}}


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
        return Signature(inspect.signature(function), is_own=_shows_its_parameters(function))
    except (TypeError, ValueError):  # built-in functions have none
        return None


def _shows_its_parameters(function: Callable[..., Any]) -> bool:
    """Return whether a function's code has the parameters and defaults of its signature.
    A class does not: ``__new__``, ``__init__`` and its metaclass may each have their own.
    """
    if type(function) is partial:
        return _shows_its_parameters(function.func)
    if isinstance(function, types.MethodType):
        return _shows_its_parameters(function.__func__)
    one: Any = function
    while one is not None:
        if not isinstance(one, types.FunctionType | types.BuiltinFunctionType):
            return False
        if "__signature__" in getattr(one, "__dict__", ()):
            return False
        one = getattr(one, "__wrapped__", None)
    own = inspect.signature(function, follow_wrapped=False)
    return _parameters(inspect.signature(function)) == _parameters(own)


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


# Settings -----------------------------------------------------------------------------------------

#: Settings of a new process, and of newly imported libraries.
_DECIMAL: Final = decimal.Context()
_DECIMAL_NAMES: Final = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "traps")
_DECIMAL_VALUES: Final = [getattr(_DECIMAL, name) for name in _DECIMAL_NAMES]
_OWN_LOCALES: Final = ("C", "POSIX", "C.UTF-8")
_ERRORS: Final = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
_PRINTING: Final = {
    "edgeitems": 3, "threshold": 1000, "floatmode": "maxprec", "precision": 8, "suppress": False,
    "linewidth": 75, "nanstr": "nan", "infstr": "inf", "sign": "-", "formatter": None,
    "legacy": False, "override_repr": None,
}  # fmt: skip


def settings() -> dict[str, Any]:
    """Return the settings of this process that change results and are not the defaults, by name."""
    found: dict[str, Any] = {}
    context = decimal.getcontext()
    values = [getattr(context, name) for name in _DECIMAL_NAMES]
    if values != _DECIMAL_VALUES:
        found["decimal"] = [*values[:-1], [one for one, trapped in values[-1].items() if trapped]]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if (errors := numpy.geterr()) != _ERRORS:
            found["numpy.seterr"] = errors
        printing = numpy.get_printoptions()
        if not _PRINTING.items() <= printing.items():
            found["numpy.set_printoptions"] = printing
    if names := _other_locale(locale.setlocale(locale.LC_ALL)):
        found["locale"] = names
    pandas: Any = sys.modules.get("pandas._config.config")
    if pandas is not None:
        now = pandas._global_config  # noqa: SLF001 - to ask for each option takes 100 us
        own = _options_of_pandas(len(pandas._registered_options))  # noqa: SLF001
        # Importing dask.dataframe turns this one off.
        if {**now, "compute": {**now["compute"], "use_numexpr": True}} != own:
            found["pandas"] = now
    return found


@cache
def _options_of_pandas(_number: int) -> dict[str, Any]:
    """Return the defaults of all options, nested as pandas keeps the values."""
    options: dict[str, Any] = {}
    registered = sys.modules["pandas._config.config"]._registered_options  # noqa: SLF001
    for name, option in registered.items():
        *groups, last = name.split(".")
        place = options
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = option.defval
    return options


@cache
def _other_locale(names: str) -> str:
    """Return the categories that are not Python's own.
    Python itself sets LC_CTYPE from the user's environment.
    """
    return ";".join(
        one
        for one in names.split(";")
        if not one.startswith("LC_CTYPE=") and one.rpartition("=")[2] not in _OWN_LOCALES
    )


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
