"""Identities of installed packages: by the files that they consist of.

A package that an installer has put in place is identified by its version and by the digests that
the installer has recorded. Others are read. What a package requires counts as well.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import blake2b
from importlib.machinery import ModuleSpec
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    distribution,
    packages_distributions,
)
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from scalable.protocol.code import is_own

#: What the identity of a package without a record of its files starts with.
READ: Final = "files"
_OWN: Final = frozenset({"builtins", "scalable"})
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA: Final = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_SEPARATOR: Final = re.compile(r"[-_.]+")
_SIZE: Final = 8


@cache
def packages_of(module: str) -> Mapping[str, str]:
    """Return the identity of each package that a module belongs to or requires, by its name.
    The result is empty for this package, and for Python's own modules, whose version is in keys.
    A module that belongs to no package is identified by its files.
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in _OWN:
        return {}
    found = _distributions(module)
    if not found:
        return {module: _of_files(_places(module))}
    return {_name(one): _identity(one) for one in _with_required(found)}


@cache
def python_version() -> str:
    """Return implementation and version of Python, and the machine type."""
    return f"{platform.python_implementation()} {platform.python_version()} {platform.machine()}"


# Packages -----------------------------------------------------------------------------------------


def _distributions(module: str) -> list[Distribution]:
    """Return the packages that a module comes from: several for a namespace that they share."""
    spec = _spec(module)
    with suppress(PackageNotFoundError):
        found = distribution(module)
        if _provides(found, spec):
            return [found]
    names = _names_by_module().get(module, ())
    every = [distribution(name) for name in sorted(set(names))]
    return [one for one in every if _provides(one, spec)]


@cache
def _names_by_module() -> Mapping[str, list[str]]:
    # This reads the files of all installed packages, which takes seconds on a slow disk.
    return packages_distributions()


def _provides(found: Distribution, spec: ModuleSpec | None) -> bool:
    """Return whether a module is from a package, and not another one with a package's name."""
    if spec is None or spec.origin is None or _folder(found) is not None:
        return True
    return Path(spec.origin).is_relative_to(str(found.locate_file("")))


def _with_required(found: Iterable[Distribution]) -> Iterator[Distribution]:
    """Yield packages and all installed ones that they require, each once."""
    waiting: list[tuple[Distribution, frozenset[str]]] = [(one, frozenset()) for one in found]
    seen: set[tuple[str, frozenset[str]]] = set()
    yielded: set[str] = set()
    while waiting:
        one, extras = waiting.pop(0)
        name = _plain(_name(one))
        if (name, extras) in seen or name in _OWN:
            continue
        seen.add((name, extras))
        if name not in yielded:
            yielded.add(name)
            yield one
        for required, asked in _requirements(one, extras):
            with suppress(PackageNotFoundError):  # not needed on this machine
                waiting.append((distribution(required), asked))


def _requirements(
    found: Distribution, extras: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    for text in found.requires or ():
        match, extra = _REQUIREMENT.match(text), _EXTRA.search(text.partition(";")[2])
        if match is not None and (extra is None or _plain(extra[1]) in extras):
            asked = (match[2] or "").split(",")
            yield match[1], frozenset(_plain(one) for one in asked if one.strip())


def _name(found: Distribution) -> str:
    return str(found.metadata["Name"])


def _plain(name: str) -> str:
    return _SEPARATOR.sub("-", name.strip()).lower()


def _of_record(name: str, version: str, record: str) -> str:
    lines = (line.rsplit(",", 2) for line in record.splitlines())
    # Neither what Python compiles nor commands, which contain the path of the environment.
    kept = sorted(
        f"{path} {digest}"
        for path, digest, _ in (line for line in lines if len(line) == 3)
        if digest and ".dist-info/" not in path and not path.startswith("..")
    )
    return f"{name} {version} {_digest(line.encode() for line in kept)}"


def _identity(found: Distribution) -> str:
    record, folder = found.read_text("RECORD"), _folder(found)
    if record is not None and folder is None:
        return _of_record(_name(found), found.version, record)
    modules = (found.read_text("top_level.txt") or _name(found).replace("-", "_")).split()
    places = [place for module in modules for place in _places(module)]
    return f"{_name(found)} {found.version} {_of_files(places or [folder] if folder else places)}"


def _folder(found: Distribution) -> Path | None:
    """Return the folder from which a package is used that is installed as editable, or None."""
    with suppress(ValueError, TypeError, AttributeError):
        about = json.loads(found.read_text("direct_url.json") or "{}")
        if about.get("dir_info", {}).get("editable"):
            return Path(unquote(urlsplit(about["url"]).path))
    return None


# Files --------------------------------------------------------------------------------------------


def _spec(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None


def _places(module: str) -> list[Path]:
    """Return the folders of a package, or the file of a module, without importing it."""
    spec = _spec(module)
    if spec is None:
        return []
    folders = list(spec.submodule_search_locations or ())
    return [Path(one) for one in folders or ([spec.origin] if spec.has_location else [])]  # type: ignore[list-item]


def _of_files(places: Iterable[Path]) -> str:
    return f"{READ} {_digest(_contents(places))}"


def _contents(places: Iterable[Path]) -> Iterator[bytes]:
    for place in places:
        for path in [place] if place.is_file() else sorted(_files(place)):
            name = path.relative_to(place.parent).as_posix().encode()
            try:
                content = path.read_bytes()
            except OSError as error:  # a socket, or a file of another user
                content = str(error.errno).encode()
            yield b"%d:%s%d:" % (len(name), name, len(content))
            yield content


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder, without hidden ones and those that Python makes."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name.startswith(".") or path.name == "__pycache__":
                continue
            if not path.is_dir():
                yield path
            elif not path.is_symlink():
                yield from _files(path)


def _digest(parts: Iterable[bytes]) -> str:
    hashed = blake2b(digest_size=_SIZE)
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


# The project --------------------------------------------------------------------------------------

#: Flag of classes that are not part of a C program.
MADE_AT_RUN_TIME = 1 << 9
MAIN = ("__main__", "__mp_main__")


def is_project(module: str) -> bool:
    """Return whether a module belongs to the user's project, not to Python or a package."""
    if module in MAIN:
        return True
    loaded = sys.modules.get(module)
    if loaded is None:
        return _is_findable_project(module)
    spec = getattr(loaded, "__spec__", None)
    origin = getattr(spec, "origin", None) or getattr(loaded, "__file__", None)
    return is_own(module, origin) or (
        origin is None and _is_own_folder(module, getattr(loaded, "__path__", ()))
    )


@lru_cache(maxsize=1024)
def _is_findable_project(module: str) -> bool:
    spec = _spec(module)
    if spec is None:
        return False
    folders = spec.submodule_search_locations if spec.origin is None else ()
    return is_own(module, spec.origin) or _is_own_folder(module, folders or ())


def _is_own_folder(module: str, folders: Iterable[str]) -> bool:
    """Return whether a package without ``__init__.py`` belongs to the project."""
    return any(is_own(module, str(Path(folder, "__init__.py"))) for folder in folders)


def is_known(module: str) -> bool:
    """Return whether a module can be imported by its name."""
    return module in sys.modules or _is_findable(module)


@lru_cache(maxsize=1024)
def _is_findable(module: str) -> bool:
    return _spec(module) is not None


def is_held(item: Any, module: str, qualname: str) -> bool:
    """Return whether a name in a loaded module refers to this function or class."""
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found is item


def is_made(item: Any, module: str, qualname: str) -> bool:
    """Return whether code was created at run time, so that no package version represents it."""
    if isinstance(item, ModuleType):
        return not is_known(module)
    is_python = isinstance(item, FunctionType) or (
        isinstance(item, type) and bool(item.__flags__ & MADE_AT_RUN_TIME)
    )
    return is_python and not is_held(item, module, qualname)
