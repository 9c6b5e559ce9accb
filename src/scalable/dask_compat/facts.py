"""Verifiable facts about the installed Dask, and the registry of seams that rely on them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from types import CodeType
from typing import Any, TypeVar

from scalable.errors import ClusterError

_Seam = TypeVar("_Seam", bound=Callable[..., Any])


@dataclass(frozen=True)
class Fact:
    """One assumption about one object of Dask."""

    #: The object, as ``module:qualified.name``.
    path: str
    #: Returns how the object differs from the assumption, or None if it does not.
    verify: Callable[[Any], str | None]

    def difference(self) -> str | None:
        """Return how the installed Dask differs from the assumption, or None if it does not."""
        try:
            found = resolve(self.path)
        except (ImportError, AttributeError) as error:
            return f"{self._dotted_path} is missing: {error}"
        text = self.verify(found)
        return None if text is None else f"{self._dotted_path} {text}"

    @property
    def _dotted_path(self) -> str:
        return self.path.replace(":", ".")


def resolve(path: str) -> Any:
    """Return the object at ``module:qualified.name``. Raises ImportError or AttributeError."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def has(path: str, *names: str) -> Fact:
    """Return the fact that an object has these attributes. ``__slots__`` count as attributes."""

    def verify(found: Any) -> str | None:
        missing = [name for name in names if not hasattr(found, name)]
        return f"has no attribute {missing[0]!r}" if missing else None

    return Fact(path, verify)


def mentions(path: str, *names: str) -> Fact:
    """Return a check that a function, or the methods of a class, uses these names or strings."""

    def verify(found: Any) -> str | None:
        known = _names_in(found)
        missing = [name for name in names if name not in known]
        return f"does not use {missing[0]!r}" if missing else None

    return Fact(path, verify)


def accepts(path: str, positional: int, *keywords: str) -> Fact:
    """Return a check that a function accepts these arguments. ``positional`` counts ``self``."""

    def verify(found: Any) -> str | None:
        code = inspect.unwrap(found).__code__
        names = _parameters(code)
        optional = len(inspect.unwrap(found).__defaults__ or ())
        takes_more = bool(code.co_flags & inspect.CO_VARARGS)
        takes_any = bool(code.co_flags & inspect.CO_VARKEYWORDS)
        required = [*names[positional : code.co_argcount - optional]]
        by_name = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        required += [n for n in by_name if n not in (inspect.unwrap(found).__kwdefaults__ or ())]
        unknown = set() if takes_any else set(keywords).difference(names[positional:])
        if (positional > code.co_argcount and not takes_more) or unknown.union(
            set(required).difference(keywords)
        ):
            return f"has the parameters ({', '.join(names)})"
        return None

    return Fact(path, verify)


def declares(path: str, *parameters: str) -> Fact:
    """Return a check that an overridden method has exactly these parameters."""

    def verify(found: Any) -> str | None:
        names = _parameters(inspect.unwrap(found).__code__)
        if names != parameters:
            return f"has the parameters ({', '.join(names)}), not ({', '.join(parameters)})"
        return None

    return Fact(path, verify)


def _parameters(code: CodeType) -> tuple[str, ...]:
    """Return the names of a function's parameters, with ``*args`` and ``**kwargs`` last."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS)
    count += bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def contains(path: str, *keys: Any) -> Fact:
    """Return the fact that a mapping or set contains these keys."""

    def verify(found: Any) -> str | None:
        missing = [key for key in keys if key not in found]
        return f"has no entry {missing[0]!r}" if missing else None

    return Fact(path, verify)


def is_a(path: str, kind: type[Any]) -> Fact:
    """Return the fact that an object is an instance of a class."""

    def verify(found: Any) -> str | None:
        if isinstance(found, kind):
            return None
        return f"is a {type(found).__name__}, not a {kind.__name__}"

    return Fact(path, verify)


@cache
def _names_in(found: Any) -> frozenset[str]:
    """Return the names used by a class's methods, or the names and strings used by a function."""
    if not inspect.isclass(found):
        code = _code_of(found)
        return frozenset() if code is None else frozenset(_names_of_code(code))
    codes = (_code_of(part) for part in vars(found).values())
    return frozenset(name for code in codes if code is not None for name in code.co_names)


def _code_of(part: Any) -> CodeType | None:
    function = getattr(part, "fget", None) or getattr(part, "__func__", None) or part
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _names_of_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from _texts(code.co_consts)


def _texts(constants: Iterable[Any]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from _texts(constant)
        elif isinstance(constant, CodeType):
            yield from _names_of_code(constant)


class Seams:
    """Registry of the seams of one kind of process. Errors contain the kind's name."""

    def __init__(self, process: str) -> None:
        self.process = process
        self._facts: dict[str, tuple[Fact, ...]] = {}
        self._optional: set[str] = set()
        self._verified = False

    def relies_on(self, *facts: Fact, optional: bool = False) -> Callable[[_Seam], _Seam]:
        """Register a seam with its facts. Callers of optional seams check :meth:`difference`."""

        def register(seam: _Seam) -> _Seam:
            self._facts[seam.__name__] = facts
            if optional:
                self._optional.add(seam.__name__)
            return seam

        return register

    @property
    def facts(self) -> dict[str, tuple[Fact, ...]]:
        return dict(self._facts)

    def difference(self, seam: str) -> str | None:
        """Return the first difference between the installed Dask and a seam's facts, or None."""
        differences = (fact.difference() for fact in self._facts[seam])
        return next((text for text in differences if text is not None), None)

    def check(self) -> None:
        """Raise ClusterError unless all required seams' facts hold. Success is cached."""
        if self._verified:
            return
        required = [seam for seam in self._facts if seam not in self._optional]
        found = {seam: self.difference(seam) for seam in required}
        broken = [f"{seam}: {text}" for seam, text in found.items() if text is not None]
        if broken:
            raise ClusterError(
                f"a {self.process} cannot run on the installed distributed {installed()}: "
                + "; ".join(broken),
                hint=f"install a version that scalable supports: {supported()}",
            )
        self._verified = True


def installed() -> str:
    """Return the installed version of distributed."""
    return metadata.version("distributed")


@cache
def supported() -> str:
    """Return the requirement on distributed in this package's metadata."""
    for requirement in metadata.requires("scalable") or ():
        name = requirement.partition(";")[0].strip()
        if name.startswith("distributed"):
            return name
    return "distributed"
