"""Digests of values by content: equal for equal values, in any process at any time.

Type tag, size and content are hashed, so that different values never write the same bytes. Other
types are written as pickle reduces them, with what their pickle leaves out. Arrays and tables are
written without importing their libraries; of tables, the memory layout does not count.
"""

from __future__ import annotations

import _thread
import copyreg
import datetime as dt
import decimal
import enum
import fractions
import functools
import io
import os
import pickle
import struct
import sys
import types
import uuid
import weakref
import zoneinfo
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final, ForwardRef, NamedTuple, NewType, TypeVar

from scalable.cache.errors import UnstableValueError
from scalable.cache.files import File, FileDigests, digest_of_file
from scalable.cache.packages import MADE_AT_RUN_TIME, is_held, is_made, is_project

#: Size of a digest in bytes.
DIGEST_SIZE: Final = 32
#: Largest number of mutable objects in a value. More are taken for an object whose pickle never
#: ends, because each of its parts creates further parts.
LARGEST: Final = 10_000_000
#: Immutable types. Two equal values of them are the same as one value that is used twice.
_IMMUTABLE = frozenset(
    {
        decimal.Decimal, fractions.Fraction, dt.date, dt.datetime, dt.time, dt.timedelta,
        dt.timezone, zoneinfo.ZoneInfo, uuid.UUID, range,
        PurePosixPath, PureWindowsPath, PosixPath, WindowsPath,
    }
)  # fmt: skip
_CODE = (types.FunctionType, types.ModuleType, type, type(functools.lru_cache(int)))
_DESCRIPTORS = (property, functools.cached_property, classmethod, staticmethod)
#: What descriptors copy from their functions, or hold for this process alone.
_COPIED: Final = frozenset(
    {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "__isabstractmethod__", "func", "lock"}
)
_HANDLES = (
    io.IOBase, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType,
)  # fmt: skip
#: What calls ``__new__`` of most pickled objects.
_NEW: Final = object().__reduce_ex__(4)[0]
#: Types of objects without content, which a class may leave out of its pickle.
LOCKS: Final = (_thread.LockType, _thread.RLock)


def _itself(value: Any) -> Any:
    return value


class Contents:
    """Writer of values into one digest.
    A mutable object that occurs twice is written once, then referenced, since functions may change
    their arguments. Values wait in a list, so that their nesting has no limit: a writer first
    writes bytes, and then at most once passes the values within to :meth:`all`.
    """

    def __init__(
        self,
        code_id: Callable[[Any], str],
        stand_in: Callable[[Any], Any] = _itself,
        files: FileDigests | None = None,
        *,
        as_sent: bool = False,
    ) -> None:
        # ``code_id`` notes code that a value contains, and returns its part name. ``stand_in``
        # returns a future's result, and other objects themselves. Without ``files``, each ``File``
        # is read.
        self.code_id, self.stand_in, self.files = code_id, stand_in, files
        #: True for values that may have been sent: whether their arrays are read-only, strided or
        #: overlapping depends on where they come from.
        self.as_sent = as_sent
        #: True if some values are files, whose content counts.
        self.has_files = False
        self._hash = blake2b(digest_size=DIGEST_SIZE)
        self._waiting: list[Any] = []
        # Objects that were written, by id, with their places. They are kept, so that their ids
        # are not reused.
        self._seen: dict[int, tuple[_Scope, int, Any]] = {}
        self._scope = _Scope(None, None)
        # Arrays by the id of the object that owns their memory.
        self._memory: dict[int, list[tuple[int, Any]]] = {}

    def part(self, value: Any) -> str:
        """Return the digest of a value, with references to the objects of earlier parts."""
        self._hash = blake2b(digest_size=DIGEST_SIZE)
        self._waiting = waiting = [value]
        try:
            while waiting:
                value = waiting.pop()
                writer = _WRITERS.get(type(value))
                if writer is not None:
                    writer(self, value)
                else:
                    self._write(value)
        except RecursionError:  # in code of a class
            raise UnstableValueError(value, "is nested too deeply") from None
        return self._hash.hexdigest()

    def _write(self, value: Any) -> None:
        kind: Any = type(value)
        if isinstance(value, _CODE):
            self.text(b"code", self.code_id(value))
        elif isinstance(value, enum.Enum):
            # Combined flags may have no name.
            self.all(b"enum", (value._value_ if value.name is None else value.name, kind))
        elif isinstance(value, File):
            own = [(n, v) for n, v in state_of(value).items() if n != "_path"]
            self.all(b"derived", (kind, own, _As(_write_file, value)))
        elif isinstance(value, _DESCRIPTORS):
            _write_descriptor(self, value)
        elif (other := self.stand_in(value)) is not value:
            self.as_sent = True
            self._waiting.append(other)
        elif kind in _IMMUTABLE:
            self._write_object(value)
        elif (found := _base_writer(kind)) is not None:
            base, writer = found
            if writer in _IMMUTABLE_WRITERS or self.is_new(value):
                if base is kind:
                    writer(self, value)
                else:
                    self.all(b"derived", (kind, _added(value, base), _As(writer, value)))
        elif self.is_new(value):
            self._write_object(value)

    # What writers of types use -------------------------------------------------------------------

    def raw(self, tag: bytes, data: Any) -> None:
        """Write a tag and bytes, or any object with the buffer protocol."""
        size = memoryview(data).nbytes
        self._hash.update(b"%s:%d:" % (tag, size))
        self._hash.update(data)

    def text(self, tag: bytes, text: str) -> None:
        self.raw(tag, text.encode("utf-8", "surrogatepass"))

    def all(self, tag: bytes, values: Collection[Any]) -> None:
        """Write a tag and the number of values, which are written in order afterwards."""
        self._hash.update(b"%s(%d:" % (tag, len(values)))
        self._waiting += reversed(values if isinstance(values, tuple | list) else [*values])

    def pairs(self, tag: bytes, items: Iterable[tuple[Any, Any]]) -> None:
        """Write a tag and pairs in order."""
        self.all(tag, [value for pair in items for value in pair])

    def unordered(self, tag: bytes, values: Collection[Any]) -> None:
        """Write a tag and values whose order is undefined."""
        kinds = set(map(type, values))
        if kinds <= {str} or kinds == {int}:
            self.all(tag, sorted(values))
        else:
            self._waiting.append(_Elements(tag, [*values]))

    def is_new(self, value: Any) -> bool:
        """Return whether a mutable object is new. If it is not, write a reference to it."""
        known = self._seen.get(id(value))
        scope = self._scope
        if known is not None:
            place, unfinished = _place(known)
            if unfinished is None:
                self.raw(b"seen", place)
                return False
            # Of two elements of a set, none comes first.
            unfinished.shared.setdefault(id(value), [known]).append((scope, scope.objects, value))
        if len(self._seen) >= LARGEST:
            raise UnstableValueError(value, f"is one of more than {LARGEST} objects")
        self._seen[id(value)] = (scope, scope.objects, value)
        scope.objects += 1
        return True

    def shared_memory(self, array: Any) -> list[tuple[int, int]]:
        """Return number and offset of earlier arrays whose memory overlaps with an array's."""
        owner = array
        while hasattr(owner, "base") and owner.base is not None:
            owner = owner.base
        others = self._memory.setdefault(id(owner), [])
        may_share = sys.modules["numpy"].may_share_memory
        found = [
            (number, array.ctypes.data - other.ctypes.data)
            for number, other in others
            if may_share(array, other) and (array.flags.writeable or other.flags.writeable)
        ]
        others.append((len(self._seen), array))
        return found

    # Objects ------------------------------------------------------------------------------------

    def _write_object(self, value: Any) -> None:
        if any(value is one for one in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__)):
            self.text(b"stream", str(value.name))  # code only writes there
            return
        if isinstance(value, _HANDLES):
            raise UnstableValueError(value, "exists only in this process")
        kind: Any = type(value)
        if hasattr(kind, "__dask_graph__"):
            raise UnstableValueError(value, "is a Dask collection: compute it, or pass its future")
        reduced = _taken_apart(value)
        if isinstance(reduced, str):
            if callable(value):
                if not _is_importable(value, reduced):
                    raise UnstableValueError(value, "cannot be imported by its name")
                self.text(b"code", self.code_id(value))
            else:
                name = f"{kind.__module__}.{kind.__qualname__}.{reduced}"
                own = (kind, state_of(value)) if _is_of_project(kind) else ()
                self.all(b"global", (name, *own))
            return
        made_by, arguments, state, items, pairs, setter = (*reduced, *[None] * 4)[:6]
        if made_by is _NEW and arguments[:1] == (kind,):
            made_by, arguments = None, arguments[1:]
        if isinstance(value, set | frozenset) and made_by is kind:
            arguments = _Elements(b"elements", [*value])
        items = None if items is None else list(items)
        pairs = None if pairs is None else [one for pair in pairs for one in pair]
        said = (kind, made_by, arguments, state, items, pairs, setter)
        self.all(b"object", (*said, *_left_out(value, kind, (arguments, state, items, pairs))))


class _Scope:
    """The objects in one element of a set, or outside all sets, numbered in order."""

    __slots__ = ("around", "digest", "elements", "is_tied", "level", "objects", "sets")

    def __init__(self, around: _Scope | None, elements: _Elements | None) -> None:
        self.around, self.elements = around, elements
        self.level: int = 0 if around is None else around.level + 1
        self.objects = self.sets = 0
        #: Digest of the element after it was written.
        self.digest = b""
        #: True if the set has an equal element.
        self.is_tied = False


class _Elements:
    """Elements of a set. Each is written into a digest of its own, and the digests are sorted.
    An object in an element is known by the digest of the element, and by its number in it.
    """

    def __init__(self, tag: bytes, values: list[Any]) -> None:
        self._tag, self._left = tag, values
        self._around: Any = None
        self._scopes: list[_Scope] = []
        #: Number of the set in its scope, once all elements were written.
        self.number: int | None = None
        #: Places of objects that are in several elements, by id.
        self.shared: dict[int, list[tuple[_Scope, int, Any]]] = {}

    def write(self, contents: Contents) -> None:
        """Write the next element, or all digests after the last one."""
        if self._around is None:
            self._around = contents._hash  # noqa: SLF001 - a part of the writer
        else:
            self._finish(contents)
        if self._left:
            contents._waiting += [self, self._left.pop()]  # noqa: SLF001
            contents._hash = blake2b(digest_size=DIGEST_SIZE)  # noqa: SLF001
            contents._scope = _Scope(contents._scope, self)  # noqa: SLF001
            return
        contents._hash = self._around  # noqa: SLF001
        digests = sorted(scope.digest for scope in self._scopes)
        contents.raw(self._tag, b"".join(digests))
        tied = {one for one, following in pairwise(digests) if one == following}
        for scope in self._scopes:
            scope.is_tied = scope.digest in tied
        around = contents._scope  # noqa: SLF001
        self.number = around.sets
        around.sets += 1
        shared = []
        for name, known in self.shared.items():
            places = sorted((_place(one)[0], number) for number, one in enumerate(known))
            contents._seen[name] = known[places[0][1]]  # noqa: SLF001
            shared.append(b"".join(b"%d:%s" % (len(place), place) for place, _ in places))
        contents.all(b"shared", sorted(shared))

    def _finish(self, contents: Contents) -> None:
        scope = contents._scope  # noqa: SLF001
        scope.digest = contents._hash.digest()  # noqa: SLF001
        self._scopes.append(scope)
        assert scope.around is not None
        contents._scope = scope.around  # noqa: SLF001


def _place(known: tuple[_Scope, int, Any]) -> tuple[bytes, _Elements | None]:
    """Return a name of an object's place, and the unfinished set that hides it, if any."""
    scope, number, value = known
    name = b"%d" % number
    while scope.digest:
        assert scope.elements is not None
        assert scope.around is not None
        if scope.elements.number is None:
            return name, scope.elements
        if scope.is_tied:
            raise UnstableValueError(
                value, "is referred to twice, and belongs to one of a set's equal elements"
            )
        name += b"/%d:%s" % (scope.elements.number, scope.digest)
        scope = scope.around
    return name + b"/%d" % scope.level, None


class _As(NamedTuple):
    """A value of a derived class, to be written as one of the base class."""

    writer: Callable[[Contents, Any], None]
    value: Any


@lru_cache(maxsize=1024)
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


def state_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object itself, in its ``__dict__`` and its slots."""
    found = dict(getattr(value, "__dict__", ()))
    for base in type(value).__mro__:
        if base.__flags__ & MADE_AT_RUN_TIME:
            for name, slot in vars(base).items():
                if isinstance(slot, types.MemberDescriptorType):
                    with suppress(AttributeError):  # not assigned
                        found[name] = slot.__get__(value)
    return found


@lru_cache(maxsize=1024)
def _is_of_project(kind: type) -> bool:
    return is_project(kind.__module__) or is_made(kind, kind.__module__, kind.__qualname__)


@lru_cache(maxsize=1024)
def _reduces_itself(kind: type) -> bool:
    return kind in copyreg.dispatch_table or any(
        getattr(kind, name, None) is not getattr(object, name, None)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )


def _left_out(value: Any, kind: type, reduced: tuple[Any, ...]) -> list[Any]:
    """Return what a function can read from an object, but is not in its pickle.
    A package's own class is trusted to leave out only what follows from the rest.
    """
    found = []
    if isinstance(value, BaseException):
        found += [value.__cause__, value.__context__, value.__suppress_context__]
    if not _reduces_itself(kind) or not _is_of_project(kind):
        return found
    kept, waiting = set(), [(reduced, 0)]
    while waiting:
        one, depth = waiting.pop()
        kept.add(id(one))
        if depth < 4 and isinstance(one, tuple | list | dict):
            inner = one.values() if isinstance(one, dict) else one
            waiting += [(within, depth + 1) for within in inner]
    left = [(n, v) for n, v in state_of(value).items() if id(v) not in kept]
    found += [copied(value) for base, copied in _BUILT_IN.items() if isinstance(value, base)]
    return [*found, *((n, v) for n, v in left if not isinstance(v, LOCKS))]


#: What an object of a class derived from a built-in one is without its attributes.
_BUILT_IN: dict[type, Callable[[Any], Any]] = {
    dict: dict.copy,
    list: list.copy,
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    set: lambda value: set().union(value),
    frozenset: lambda value: frozenset().union(value),
    str: str.__str__,
    bytes: bytes.__bytes__,
    bytearray: bytearray.copy,
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
}


def _write_int(contents: Contents, value: int) -> None:
    contents.raw(b"int", b"%d" % value if -(1 << 64) < value < 1 << 64 else hex(value).encode())


def _write_complex(contents: Contents, value: complex) -> None:
    contents.raw(b"complex", struct.pack("<dd", value.real, value.imag))


def _write_list(contents: Contents, value: list[Any]) -> None:
    if contents.is_new(value):
        contents.all(b"list", value)


def _write_dict(contents: Contents, value: dict[Any, Any]) -> None:
    if contents.is_new(value):
        contents.pairs(b"dict", value.items())


def _write_set(contents: Contents, value: set[Any]) -> None:
    if contents.is_new(value):
        contents.unordered(b"set", value)


def _write_weak(contents: Contents, value: Any) -> None:
    if contents.is_new(value):
        contents.pairs(b"weak", value.items())


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
        contents.all(b"bound", (value.__name__, value.__self__))


def _write_descriptor(contents: Contents, value: Any) -> None:
    names = ("fget", "fset", "fdel", "func", "__func__")
    functions = tuple(getattr(value, name, None) for name in names)
    state = [(name, item) for name, item in state_of(value).items() if name not in _COPIED]
    contents.all(b"descriptor", (type(value), *functions, *state))


def _write_file(contents: Contents, value: File) -> None:
    contents.has_files = True
    files = FileDigests() if contents.files is None else contents.files
    contents.all(b"file", [*value.content(files)])


def _write_pure_object(_: Contents, value: Any) -> None:
    raise UnstableValueError(value, "differs from others only by its identity")


def _write_environ(_: Contents, value: Any) -> None:
    raise UnstableValueError(value, "differs between processes; pass the values that are needed")


_WRITERS: dict[type, Callable[[Contents, Any], None]] = {
    type(None): lambda contents, _: contents.raw(b"none", b""),
    type(...): lambda contents, _: contents.raw(b"...", b""),
    type(NotImplemented): lambda contents, _: contents.raw(b"notimplemented", b""),
    bool: lambda contents, value: contents.raw(b"bool", b"1" if value else b"0"),
    int: _write_int,
    # Functions can see the sign of zero and of NaN, and a NaN's other bits.
    float: lambda contents, value: contents.raw(b"float", struct.pack("<d", value)),
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
    types.MethodType: lambda contents, value: contents.all(
        b"method", (value.__self__, value.__func__)
    ),
    types.MappingProxyType: lambda contents, value: contents.pairs(b"proxy", value.items()),
    types.GenericAlias: lambda contents, value: contents.all(b"alias", value.__reduce__()[1]),
    struct.Struct: lambda contents, value: contents.text(b"struct", value.format),
    File: _write_file,
    # Without what it was evaluated to, which depends on what ran before.
    ForwardRef: lambda contents, value: contents.text(b"forward", value.__forward_arg__),
    NewType: lambda contents, value: contents.all(
        b"newtype", (value.__name__, value.__supertype__)
    ),
    weakref.WeakKeyDictionary: _write_weak,
    weakref.WeakValueDictionary: _write_weak,
    TypeVar: lambda contents, value: contents.all(
        b"typevar", (value.__name__, value.__bound__, value.__constraints__)
    ),
    type(os.environ): _write_environ,
    _As: lambda contents, value: value.writer(contents, value.value),
    _Elements: lambda contents, value: value.write(contents),
}


# Arrays and tables --------------------------------------------------------------------------------

#: Entropy of more bits means an unseeded generator: numpy then draws 128 bits from the system.
_SEED_BITS: Final = 96
#: Flags of arrays that functions depend on: aligned, writeable.
_FLAGS: Final = 0x500
#: Bytes of a long double that its value fills, by its number of mantissa bits. The rest is padding.
_LONG_DOUBLE: Final = {63: 10}
#: Attributes of objects of the libraries that are derived from the others, or from the process.
_DERIVED: Final = frozenset({"_mmap", "_cache", "_item_cache", "_cacher", "_is_copy"})


@lru_cache(maxsize=1024)
def _base_writer(kind: type) -> tuple[type, Callable[[Contents, Any], None]] | None:
    """Return the class of a library from which a class derives, and its writer."""
    library = str(kind.__module__).partition(".")[0]
    for base in kind.__mro__:
        top = str(base.__module__).partition(".")[0]
        writer = _OF_LIBRARIES.get((top, base.__qualname__))
        if writer is _write_column and top != library:
            return None  # another package's array: what it is made of may be hidden
        if writer is not None:
            own = top == library and writer not in (_write_ndarray, _write_masked)
            return kind if own else base, writer
    return None


def _added(value: Any, base: type) -> dict[str, Any]:
    """Return the attributes that an object has in addition to those of its base class."""
    own = _own_attributes(base) | _DERIVED
    return {name: item for name, item in state_of(value).items() if name not in own}


@lru_cache(maxsize=64)
def _own_attributes(base: type) -> frozenset[str]:
    found = {
        name
        for kind in base.__mro__
        for name, slot in vars(kind).items()
        if isinstance(slot, types.MemberDescriptorType)
    }
    with suppress(TypeError, ValueError, AttributeError):  # cannot be made of nothing
        found |= state_of(base(())).keys()
    return frozenset(found)


def _plain(array: Any) -> _As:
    """Return an array to be written by its elements alone, without memory and layout."""
    return _As(_write_elements, array)


def _write_ndarray(contents: Contents, array: Any) -> None:
    numpy = sys.modules["numpy"]
    if type(array) is not numpy.ndarray:
        array = numpy.ndarray.view(array, numpy.ndarray)
    flags = array.flags
    is_fortran = flags.f_contiguous and not flags.c_contiguous
    if contents.as_sent:
        about = "F" if is_fortran else "C"
    else:
        layout = "F" if is_fortran else "C" if flags.c_contiguous else str(array.strides)
        about = f"{layout} {flags.num & _FLAGS} {contents.shared_memory(array) or ''}"
    contents.text(b"ndarray", f"{array.shape} {about}")
    _write_elements(contents, array)


def _write_elements(contents: Contents, array: Any) -> None:
    dtype = array.dtype
    if dtype.names is not None:  # without the padding between fields, which is random
        fields = [_plain(array[name]) for name in dtype.names]
        contents.all(b"fields", (dtype, array.shape, *fields))
    elif dtype.hasobject:
        contents.all(b"elements", (dtype, array.shape, *array.ravel().tolist()))
    elif dtype.kind in "biufcmMSU" and dtype.metadata is None and dtype.type.__module__ == "numpy":
        contents.text(b"dtype", dtype.str + dtype.char)
        _write_data(contents, array)
    else:
        contents.all(b"typed", (dtype, _As(_write_data, array)))


def _write_data(contents: Contents, array: Any) -> None:
    # A transposed array in Fortran order is in C order, so that neither order is copied.
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    compact = array.T if fortran else array
    flat = (compact if compact.flags.c_contiguous else compact.copy("C")).reshape(-1)
    data: Any = flat.view("u1") if flat.size and flat.itemsize else b""
    if flat.dtype.char in "gG" and flat.size:
        size = flat.itemsize // (1 if flat.dtype.char == "g" else 2)
        bits = sys.modules["numpy"].finfo(flat.dtype).nmant
        data = data.reshape(-1, size)[:, : _LONG_DOUBLE.get(bits, size)].copy()
    contents.raw(b"dataF" if fortran else b"data", data)


def _write_dtype(contents: Contents, dtype: Any) -> None:
    name = f"{dtype.type.__module__}.{dtype.type.__qualname__}"
    fields = tuple((one, *dtype.fields[one]) for one in dtype.names or ())
    missing = (getattr(dtype, "na_object", ()), getattr(dtype, "coerce", ()))
    contents.all(
        b"dtype",
        (dtype.str, dtype.char, name, dtype.metadata and dict(dtype.metadata), dtype.itemsize,
         dtype.isalignedstruct, fields, dtype.subdtype, missing),
    )  # fmt: skip


def _write_scalar(contents: Contents, scalar: Any) -> None:
    contents.all(b"scalar", (_plain(sys.modules["numpy"].asarray(scalar)),))


def _write_void(contents: Contents, scalar: Any) -> None:
    _write_scalar(contents, scalar)


def _write_masked(contents: Contents, array: Any) -> None:
    numpy = sys.modules["numpy"]
    data = numpy.ndarray.view(array, numpy.ndarray)
    # The fill value of a view is made without changing the array.
    shared = () if contents.as_sent else (array.sharedmask,)
    kept = (array.view().fill_value, array.hardmask, *shared, vars(array).get("_optinfo"))
    contents.all(b"masked", (data, array.mask, *kept))


def _write_generator(contents: Contents, generator: Any) -> None:
    # A RandomState exposes its bit generator in no other way.
    bits = getattr(generator, "bit_generator", None) or generator._bit_generator  # noqa: SLF001
    seeds = getattr(bits, "_seed_seq", None)
    entropy = getattr(seeds, "entropy", None)
    if isinstance(entropy, int) and entropy >> _SEED_BITS:
        raise UnstableValueError(
            generator, "was not seeded; use a seed below 2**96, or create it in the task"
        )
    names = ("spawn_key", "pool_size", "n_children_spawned")
    spawning = (entropy, *(getattr(seeds, name, None) for name in names))
    legacy = generator.get_state(legacy=False) if hasattr(generator, "get_state") else None
    contents.all(b"generator", (type(bits), bits.state, legacy, spawning))


def _write_reduced(contents: Contents, value: Any) -> None:
    contents._write_object(value)  # noqa: SLF001 - a part of the writer


def _write_timestamp(contents: Contents, value: Any) -> None:
    contents.all(b"timestamp", (*value.__reduce__()[1], value.fold))


def _write_frame(contents: Contents, frame: Any) -> None:
    columns = [_As(_write_column, frame.iloc[:, number].array) for number in range(frame.shape[1])]
    flags = frame.flags.allows_duplicate_labels
    contents.all(b"frame", (frame.columns, frame.index, frame.attrs, flags, *columns))


def _write_series(contents: Contents, series: Any) -> None:
    flags = series.flags.allows_duplicate_labels
    column = _As(_write_column, series.array)
    contents.all(b"series", (series.name, series.index, series.attrs, flags, column))


def _write_index(contents: Contents, index: Any) -> None:
    frequency = getattr(index, "freq", None)
    kind = type(index).__qualname__
    if kind == "RangeIndex":
        held: Any = (index.start, index.stop, index.step)
    elif index.nlevels > 1:  # functions can see levels that are not used
        held = (tuple(index.levels), tuple(map(_plain, map(_as_array, index.codes))))
    else:
        held = _As(_write_column, index.array)
    contents.all(b"index", (kind, tuple(index.names), frequency, held))


def _as_array(values: Any) -> Any:
    return sys.modules["numpy"].asarray(values)


def _write_column(contents: Contents, array: Any) -> None:
    """Write a pandas array by its visible values, ignoring data behind missing ones."""
    kind = type(array).__qualname__
    if type(array).__module__.partition(".")[0] != "pandas":
        contents.all(b"column", (array,))
        return
    if kind == "Categorical":
        held: Any = (array.categories, array.ordered, _plain(array.codes))
    elif kind in ("NumpyExtensionArray", "PandasArray"):
        held = _plain(array.to_numpy())
    elif kind in ("DatetimeArray", "TimedeltaArray", "PeriodArray"):
        held = (_plain(array.asi8), getattr(array, "freq", None))
    else:
        missing = _as_array(array.isna())
        held = (_plain(missing), tuple(array[~missing].to_numpy(dtype=object).tolist()))
    contents.all(b"column", (kind, type(array.dtype).__qualname__, repr(array.dtype), held))


def _write_dataset(contents: Contents, dataset: Any) -> None:
    variables = [(name, _As(_write_variable, one)) for name, one in dataset.variables.items()]
    contents.all(b"dataset", (_indexes(dataset), dataset.attrs, dataset.encoding, *variables))


def _write_data_array(contents: Contents, array: Any) -> None:
    coordinates = [(n, _As(_write_variable, one.variable)) for n, one in array.coords.items()]
    own = _As(_write_variable, array.variable)
    contents.all(b"data_array", (array.name, own, _indexes(array), *coordinates))


def _indexes(labelled: Any) -> tuple[Any, ...]:
    """Return the coordinates of an xarray object in order, and its indexes."""
    indexes = labelled.xindexes.items()
    kept = tuple((name, type(one), getattr(one, "index", None)) for name, one in indexes)
    return (tuple(labelled.coords), kept)


def _write_variable(contents: Contents, variable: Any) -> None:
    if variable.chunks is not None:
        raise UnstableValueError(variable, "is lazy; call .compute() first, or pass its path")
    values = variable.values
    if type(variable).__qualname__ == "IndexVariable":
        values = _plain(values)
    contents.all(b"variable", (tuple(variable.dims), variable.attrs, variable.encoding, values))


def _write_library(contents: Contents, library: Any) -> None:
    """Write a ctypes library by its file, with the functions whose types are declared."""
    ctypes: Any = sys.modules["ctypes"]
    name = library._name  # noqa: SLF001 - ctypes documents it
    path = _loaded_from(name)
    if path is None:
        reason = f"was loaded from no file that is known ({name!r}); load it by its path"
        raise UnstableValueError(library, reason)
    try:
        digest = digest_of_file(path, FileDigests() if contents.files is None else contents.files)
    except OSError as error:
        raise UnstableValueError(library, f"cannot be read ({error})") from error
    declared = tuple(
        (name, one.restype, one.argtypes, getattr(one, "errcheck", None))
        for name, one in sorted(vars(library).items())
        if isinstance(one, ctypes._CFuncPtr)  # noqa: SLF001 - the class of all functions
        and (one.restype, one.argtypes) != (ctypes.c_int, None)
    )
    kind = type(library)
    # The file stands for what a class of ctypes itself does.
    own = kind.__qualname__ if kind.__module__ == "ctypes" else kind
    contents.all(b"library", (own, digest, declared))


def _write_type_adapter(contents: Contents, adapter: Any) -> None:
    """Write what pydantic makes a validator from, since that contains addresses of classes."""
    contents.all(b"adapter", (adapter._type, adapter._config))  # noqa: SLF001


def _write_decorator(contents: Contents, made: Any) -> None:
    contents.all(b"decorator", (made.cls_var_name, made.func, made.shim, made.info))


def _write_validated_call(contents: Contents, call: Any) -> None:
    configured = call.config_wrapper.config_dict
    contents.all(b"validated", (call.function, call.validate_return, configured))


def _loaded_from(name: Any) -> str | None:
    """Return the path of a library's file. The system finds a name without directory."""
    if not isinstance(name, str):
        return None
    if os.sep in name:
        return name
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    paths = {line[line.index("/") :] for line in lines if "/" in line}
    found = {path for path in paths if Path(path).name.startswith(name)}
    return found.pop() if len(found) == 1 else None


#: Writers of immutable values.
_IMMUTABLE_WRITERS = frozenset({_write_dtype, _write_scalar, _write_timestamp, _write_reduced})
_OF_LIBRARIES: dict[tuple[str, str], Callable[[Contents, Any], None]] = {
    ("numpy", "ndarray"): _write_ndarray,
    ("numpy", "MaskedArray"): _write_masked,
    ("numpy", "void"): _write_void,
    ("numpy", "generic"): _write_scalar,
    ("numpy", "dtype"): _write_dtype,
    ("numpy", "Generator"): _write_generator,
    ("numpy", "RandomState"): _write_generator,
    ("pandas", "DataFrame"): _write_frame,
    ("pandas", "Series"): _write_series,
    ("pandas", "Index"): _write_index,
    ("pandas", "ExtensionArray"): _write_column,
    ("pandas", "Timestamp"): _write_timestamp,
    **{("pandas", name): _write_reduced
       for name in ("Timedelta", "Period", "Interval", "NaTType", "NAType", "BaseOffset")},
    ("xarray", "Dataset"): _write_dataset,
    ("xarray", "DataArray"): _write_data_array,
    ("xarray", "Variable"): _write_variable,
    ("ctypes", "CDLL"): _write_library,
    ("pydantic", "TypeAdapter"): _write_type_adapter,
    ("pydantic", "Decorator"): _write_decorator,
    ("pydantic", "ValidateCallWrapper"): _write_validated_call,
}  # fmt: skip
