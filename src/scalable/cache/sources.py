"""Sources of the user's modules: which modules these are, and digests without comments."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from scalable.protocol.code import is_own, read_source

#: Flag of classes that are not part of a C program.
_MADE_AT_RUN_TIME = 1 << 9
_MAIN = ("__main__", "__mp_main__")


def is_project(module: str) -> bool:
    """Return whether a module belongs to the user's project, not to Python or a package."""
    if module in _MAIN:
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


def _spec(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None


def is_held(item: Any, module: str, qualname: str) -> bool:
    """Return whether a name in a loaded module leads to this function or class."""
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found is item


def is_made(item: Any, module: str, qualname: str) -> bool:
    """Return whether code was made at run time, so that no package version represents it."""
    if isinstance(item, ModuleType):
        return not is_known(module)
    is_python = isinstance(item, FunctionType) or (
        isinstance(item, type) and bool(item.__flags__ & _MADE_AT_RUN_TIME)
    )
    return is_python and not is_held(item, module, qualname)


def module_digest(module: str) -> str | None:
    """Return the digest of a module's source without comments and positions, or None."""
    statements = _statements(module)
    return None if statements is None else _digest("".join(text for _, text in statements))


def binding_digest(module: str, name: str) -> str | None:
    """Return the digest of a module's statements that bind a name, or None without a source.

    A worker imports the module itself: its value is that of these statements, whatever was assigned
    to the name in this process.
    """
    statements = None if module in _MAIN else _statements(module)
    if statements is None:
        return None
    return _digest("".join(text for names, text in statements if name in names))


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _statements(module: str) -> tuple[tuple[frozenset[str], str], ...] | None:
    path = getattr(sys.modules.get(module), "__file__", None)
    if not isinstance(path, str) or not path.endswith(".py"):
        return None
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return _parsed(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=512)
def _parsed(path: str, _modified: int, _size: int) -> tuple[tuple[frozenset[str], str], ...] | None:
    """Return the names that each statement of a module binds, and the statement as a string."""
    source = read_source(path)
    if source is None:
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    return tuple((_bound(statement), ast.dump(statement)) for statement in tree.body)


def _bound(statement: ast.stmt) -> frozenset[str]:
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return frozenset(names)
