"""Digests of values by content: equal for equal values, in any process at any time.

Type tag, size and content are hashed, so that different values never write the same bytes. Other
types are written as pickle reduces them, so the digest covers exactly what a worker receives.
"""

from __future__ import annotations

import ast
import copyreg
import datetime as dt
import decimal
import enum
import fractions
import functools
import io
import math
import os
import pickle
import struct
import sys
import types
import uuid
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path, PurePath
from types import FunctionType, ModuleType
from typing import Any, Final

from scalable.cache.arrays import IMMUTABLE_WRITERS, array_writer, not_pickled
from scalable.cache.errors import UnstableValueError
from scalable.cache.file import File
from scalable.cache.file_digests import FileDigests
from scalable.protocol.code import is_own, read_source

#: Size of a digest in bytes.
DIGEST_SIZE: Final = 32
#: Immutable types. Two equal values of them are the same as one value that is used twice.
_IMMUTABLE = (
    decimal.Decimal, fractions.Fraction, dt.date, dt.time, dt.timedelta,
    dt.tzinfo, uuid.UUID, PurePath, range, slice,
)  # fmt: skip
_CODE = (types.FunctionType, types.ModuleType, type, type(functools.lru_cache(int)))
_HANDLES = (
    io.IOBase, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType,
)  # fmt: skip
_NAN = struct.pack("<d", float("nan"))


def _unknown_future(_: Any) -> str | None:
    return None


class Contents:
    """Writer of values into one digest.
    A mutable object that occurs twice is written once, then referenced, since functions may change
    their arguments. The order of items counts for an ``OrderedDict`` but not for a dict.
    """

    def __init__(
        self,
        code_id: Callable[[Any], str],
        future_key: Callable[[Any], str | None] = _unknown_future,
        files: FileDigests | None = None,
    ) -> None:
        # ``code_id`` notes code that a value contains, and returns its part name. ``future_key``
        # returns None for other objects. Without ``files``, each ``File`` is read.
        self.code_id, self.future_key, self.files = code_id, future_key, files
        #: True if some values are futures, which are written as the keys of their tasks.
        self.has_futures = False
        self._hash = blake2b(digest_size=DIGEST_SIZE)
        # Objects are kept, so that their ids are not reused.
        self._seen: dict[int, tuple[int, Any]] = {}

    def part(self, value: Any) -> str:
        """Return the digest of a value, with references to the objects of earlier parts."""
        self._hash = blake2b(digest_size=DIGEST_SIZE)
        try:
            self.write(value)
        except RecursionError:
            raise UnstableValueError(value, "is nested too deeply") from None
        return self._hash.hexdigest()

    def write(self, value: Any) -> None:
        """Write any value, or raise UnstableValueError if a part has no reproducible content."""
        writer = _WRITERS.get(type(value))
        if writer is not None:
            writer(self, value)
        elif isinstance(value, _CODE):
            self.text(b"code", self.code_id(value))
        elif isinstance(value, File):
            self.all(b"file", value.content(FileDigests() if self.files is None else self.files))
        elif isinstance(value, types.MethodType):
            self.all(b"method", (value.__self__, value.__func__))
        elif isinstance(value, enum.Enum):
            # Combined flags may have no name.
            self.all(b"enum", (value._value_ if value.name is None else value.name, type(value)))
        elif (key := self.future_key(value)) is not None:
            self.has_futures = True
            self.text(b"future", key)
        elif (writer := array_writer(value)) is not None:
            if writer in IMMUTABLE_WRITERS or self.is_new(value):
                writer(self, value)
        elif isinstance(value, _IMMUTABLE) or self.is_new(value):
            self._write_object(value)

    # What writers of types use -------------------------------------------------------------------

    def raw(self, tag: bytes, data: Any) -> None:
        """Write a tag and bytes, or any object with the buffer protocol."""
        size = memoryview(data).nbytes
        self._hash.update(b"%s:%d:" % (tag, size))
        self._hash.update(data)

    def text(self, tag: bytes, text: str) -> None:
        self.raw(tag, text.encode("utf-8", "surrogatepass"))

    def all(self, tag: bytes, values: Iterable[Any]) -> None:
        """Write a tag, the values in order, and an end mark."""
        self._hash.update(b"%s(" % tag)
        for value in values:
            self.write(value)
        self._hash.update(b")")

    def pairs(self, tag: bytes, items: Iterable[tuple[Any, Any]]) -> None:
        """Write a tag and pairs, ordered by key if all keys are strings, else by key digest."""
        named = list(items)
        if all(type(name) is str for name, _ in named):
            self._hash.update(b"%s[" % tag)
            for name, value in sorted(named, key=itemgetter(0)):
                self.text(b"str", name)
                self.write(value)
            self._hash.update(b"]")
            return
        self._hash.update(b"%s{" % tag)
        keyed = [(self._alone(key), value) for key, value in named]
        for digest, value in sorted(keyed, key=itemgetter(0)):
            self._hash.update(digest)
            self.write(value)
        self._hash.update(b"}")

    def unordered(self, tag: bytes, values: Iterable[Any]) -> None:
        """Write a tag and values, ordered by digest."""
        self.raw(tag, b"".join(sorted(map(self._alone, values))))

    def _alone(self, value: Any) -> bytes:
        """Return a value's digest without references to other values, whose order is undefined."""
        contents = Contents(self.code_id, self.future_key, self.files)
        contents.write(value)
        return contents._hash.digest()

    # Objects ------------------------------------------------------------------------------------

    def is_new(self, value: Any) -> bool:
        """Return whether a mutable object is new. If it is not, write a reference to it."""
        known = self._seen.get(id(value))
        if known is not None:
            self._hash.update(b"seen:%d:" % known[0])
            return False
        self._seen[id(value)] = (len(self._seen), value)
        return True

    def _write_object(self, value: Any) -> None:
        if isinstance(value, _HANDLES):
            raise UnstableValueError(value, "exists only in this process")
        if hasattr(type(value), "__dask_graph__"):
            raise UnstableValueError(value, "is a Dask collection: compute it, or pass its future")
        reduced = _taken_apart(value)
        if isinstance(reduced, str):
            if callable(value):
                if not _is_importable(value, reduced):
                    raise UnstableValueError(value, "cannot be imported by its name")
                self.text(b"code", self.code_id(value))
            else:
                kind = type(value)
                self.text(b"global", f"{kind.__module__}.{kind.__qualname__}.{reduced}")
            return
        made_by, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        self._hash.update(b"object(")
        self.write(not_pickled(value))
        self.write(made_by)
        self.write(arguments)
        self.write(_without_cached(value, state))
        self.all(b"items", () if items is None else items)
        self.all(b"pairs", () if pairs is None else pairs)
        self._hash.update(b")")


@functools.lru_cache(maxsize=1024)
def _is_importable(value: Any, name: str) -> bool:
    """Return whether a worker can import an object by its name, as pickle does."""
    module = getattr(value, "__module__", None)
    places = [module] if module else list(sys.modules)
    return any(is_held(value, place, name) for place in places)


def _taken_apart(value: Any) -> Any:
    """Return the parts to which pickle reduces an object, or raise UnstableValueError."""
    reducer = copyreg.dispatch_table.get(type(value))
    try:
        return value.__reduce_ex__(4) if reducer is None else reducer(value)
    except (TypeError, ValueError, AttributeError, RuntimeError, OSError, pickle.PickleError) as e:
        raise UnstableValueError(value, f"cannot be sent to a worker ({e})") from e


def _without_cached(value: Any, state: Any) -> Any:
    """Return an object's state without values stored by ``cached_property``."""
    if not isinstance(state, dict):
        return state
    kind = type(value)
    return {
        name: kept
        for name, kept in state.items()
        if not isinstance(getattr(kind, name, None) if isinstance(name, str) else None,
                          functools.cached_property)
    }  # fmt: skip


def _write_int(contents: Contents, value: int) -> None:
    contents.raw(b"int", b"%d" % value if -(1 << 64) < value < 1 << 64 else hex(value).encode())


def _write_float(contents: Contents, value: float) -> None:
    contents.raw(b"float", _NAN if math.isnan(value) else struct.pack("<d", value))


def _write_complex(contents: Contents, value: complex) -> None:
    contents.all(b"complex", (value.real, value.imag))


def _write_list(contents: Contents, value: list[Any]) -> None:
    if contents.is_new(value):
        contents.all(b"list", value)


def _write_dict(contents: Contents, value: dict[Any, Any]) -> None:
    if contents.is_new(value):
        contents.pairs(b"dict", value.items())


def _write_set(contents: Contents, value: set[Any]) -> None:
    if contents.is_new(value):
        contents.unordered(b"set", value)


def _write_bytearray(contents: Contents, value: bytearray) -> None:
    if contents.is_new(value):
        contents.raw(b"bytearray", value)


def _write_partial(contents: Contents, value: functools.partial[Any]) -> None:
    contents.all(b"partial", (value.func, value.args, value.keywords, vars(value)))


def _write_builtin(contents: Contents, value: types.BuiltinFunctionType) -> None:
    """Write a C function, or a bound method of a C type with its object."""
    if value.__self__ is None or isinstance(value.__self__, types.ModuleType):
        contents.text(b"code", contents.code_id(value))
    else:
        contents.text(b"bound", value.__name__)
        contents.write(value.__self__)


def _write_environ(_: Contents, value: Any) -> None:
    raise UnstableValueError(value, "differs between processes; pass the values that are needed")


_WRITERS: dict[type, Callable[[Contents, Any], None]] = {
    type(None): lambda contents, _: contents.raw(b"none", b""),
    type(...): lambda contents, _: contents.raw(b"...", b""),
    type(NotImplemented): lambda contents, _: contents.raw(b"notimplemented", b""),
    bool: lambda contents, value: contents.raw(b"bool", b"1" if value else b"0"),
    int: _write_int,
    float: _write_float,
    complex: _write_complex,
    str: lambda contents, value: contents.text(b"str", value),
    bytes: lambda contents, value: contents.raw(b"bytes", value),
    bytearray: _write_bytearray,
    tuple: lambda contents, value: contents.all(b"tuple", value),
    list: _write_list,
    dict: _write_dict,
    set: _write_set,
    frozenset: lambda contents, value: contents.unordered(b"frozenset", value),
    slice: lambda contents, value: contents.all(b"slice", (value.start, value.stop, value.step)),
    functools.partial: _write_partial,
    types.BuiltinFunctionType: _write_builtin,
    types.MappingProxyType: lambda contents, value: contents.pairs(b"proxy", value.items()),
    type(os.environ): _write_environ,
}


# Sources ------------------------------------------------------------------------------------------

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
        isinstance(item, type) and bool(item.__flags__ & _MADE_AT_RUN_TIME)
    )
    return is_python and not is_held(item, module, qualname)


def module_digest(module: str) -> str | None:
    """Return the digest of a module's source without comments and positions, or None."""
    statements = _statements(module)
    return None if statements is None else _digest("".join(text for _, text in statements))


def binding_digest(module: str, name: str) -> str | None:
    """Return the digest of a module's statements that bind a name, or None without a source.
    On a worker, the name's value comes from these statements, not from assignments here.
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
    """Return each statement of a module as a string, with the names that it binds."""
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
