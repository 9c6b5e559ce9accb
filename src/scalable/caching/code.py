"""The code that a call reaches: functions, classes, constants and modules of the user's project.

The walk starts at what a call is given and follows static references: global names, attributes of
the project's modules, closures, defaults, base classes, imports inside functions. Code of Python
and of installed packages is not followed: its version stands for it.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import logging
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from scalable.caching.content import Contents
from scalable.caching.errors import UnstableValueError
from scalable.caching.references import references
from scalable.caching.sources import binding_digest, is_project, module_digest

logger = logging.getLogger("scalable.caching")

#: Attribute of a function that :func:`scalable.cached` has decorated: its options.
OPTIONS: Final = "__scalable_cached__"
#: Built-in functions that reach code by names that are known only when they run.
_DYNAMIC: Final = frozenset({"eval", "exec", "compile", "globals", "__import__"})
#: Functions of Python's own modules that do so.
_IMPORTERS: Final = frozenset({("importlib", "import_module"), ("runpy", "run_path")})
#: Attributes of a class that Python or its library made from others.
_MADE: Final = frozenset(
    {
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__qualname__",
        "__firstlineno__",
        "__static_attributes__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__match_args__",
        "__slotnames__",  # pickling an object of the class writes it
        "__abstractmethods__",
        "_abc_impl",
        "__parameters__",
        "__orig_bases__",
    }
)
_KEEPER: Final = type(functools.lru_cache(int))


class Reach:
    """The code that one call reaches, as parts of its key.

    Attributes
    ----------
    parts
        Name of each part -> its digest; the names open with ``code:``, ``constant:`` or
        ``module:``.
    packages
        Names of the installed packages' modules that the reached modules import.
    unfollowed
        References that cannot be followed, as sentences.
    """

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}
        self.packages: set[str] = set()
        self.unfollowed: list[str] = []
        self._watched: list[tuple[Callable[[], tuple[Any, ...]], tuple[Any, ...]]] = []
        self._mutable: list[Any] = []
        self._ids: dict[int, tuple[str, Any]] = {}
        self._names: dict[str, int] = {}
        self._waiting: list[tuple[str, Any]] = []

    def code_id(self, item: Any) -> str:
        """Return the name of a function, class or module among the parts; it is followed later."""
        known = self._ids.get(id(item))
        if known is not None:
            return known[0]
        if isinstance(item, types.ModuleType):
            module, name = item.__name__, f"module:{item.__name__}"
        else:
            qualname = getattr(item, "__qualname__", None) or getattr(item, "__name__", "?")
            module = getattr(item, "__module__", None) or "builtins"
            name = f"code:{module}.{qualname}"
        if not is_project(module):
            self._note_package(module)
            return self._named(item, name)
        # Two functions may have one name: lambdas on one line, a function that was defined again.
        number = self._names[name] = self._names.get(name, 0) + 1
        name = name if number == 1 else f"{name}#{number}"
        self._waiting.append((name, item))
        return self._named(item, name)

    def _named(self, item: Any, name: str) -> str:
        self._ids[id(item)] = (name, item)  # the object is kept, so that its id stays its own
        return name

    def follow(self) -> None:
        """Follow all references of the code that was noted, until no new code is reached."""
        while self._waiting:
            name, item = self._waiting.pop(0)
            try:
                self.parts[name] = self._digest(name, item)
            except UnstableValueError as error:
                self._cannot(f"{_shown(name)} holds {error.reason}")

    def _cannot(self, sentence: str) -> None:
        logger.debug("a reference cannot be followed: %s", sentence)
        if sentence not in self.unfollowed:
            self.unfollowed.append(sentence)

    def _note_package(self, module: str) -> None:
        self.packages.add(module.partition(".")[0])

    # What each kind of code is made of -----------------------------------------------------------

    def _digest(self, name: str, item: Any) -> str:
        contents = Contents(self.code_id)
        if isinstance(item, types.ModuleType):
            return contents.part(self._module(item))
        if isinstance(item, type):
            return contents.part(self._class(item))
        if isinstance(item, types.FunctionType):
            options = vars(item).get(OPTIONS)
            if options is not None:  # its own code is this package's
                said = options.version, options.ignore, options.depends_on
                return contents.part(["cached", said, vars(item)["__wrapped__"]])
            return contents.part(self._function(name, item))
        wrapped = getattr(item, "__wrapped__", None) or getattr(item, "py_func", None)
        if wrapped is not None:
            return contents.part([type(item).__qualname__, wrapped])
        raise UnstableValueError(item, "is code that cannot be read")

    def _function(self, name: str, function: types.FunctionType) -> list[Any]:
        cells = function.__closure__ or ()
        self._watch(
            lambda: (
                function.__code__,
                function.__defaults__,
                function.__kwdefaults__,
                *_cell_values(cells),
            )
        )
        registry = getattr(function, "registry", None)
        if isinstance(registry, Mapping) and hasattr(function, "dispatch"):  # singledispatch
            return ["dispatch", sorted((k.__qualname__, k, v) for k, v in registry.items())]
        self._note_imports(function.__module__)
        for value in (function.__defaults__, function.__kwdefaults__, *_cell_values(cells)):
            self._note_mutable(value)
        attributes = {k: v for k, v in vars(function).items() if k != "__wrapped__"}
        return [
            _shape(function.__code__),
            function.__defaults__,
            function.__kwdefaults__,
            _cell_values(cells),
            attributes,
            list(self._targets(name, function.__code__, function.__globals__)),
        ]

    def _class(self, kind: type) -> list[Any]:
        self._note_imports(kind.__module__)
        self._watch(lambda: tuple(vars(kind).values()))
        members: list[Any] = []
        for attribute in sorted(vars(kind)):
            value = _unwrapped(vars(kind)[attribute])
            if attribute in _MADE or isinstance(value, types.MemberDescriptorType):
                continue
            try:
                Contents(self.code_id).part(value)
            except UnstableValueError:
                # Its definition stands for it: the worker makes its own from the same source.
                value = binding_digest(kind.__module__, kind.__qualname__.partition(".")[0])
                if value is None:
                    raise
            if not isinstance(value, str):
                self._note_mutable(value)
            members.append((attribute, value))
        return [kind.__qualname__, kind.__bases__, type(kind), members]

    def _module(self, module: types.ModuleType) -> list[Any]:
        """Return the parts of a module of which any name may be used."""
        self._note_imports(module.__name__)
        values = [value for value in vars(module).values() if _is_code(value)]
        others = [v for v in values if getattr(v, "__module__", None) != module.__name__]
        return [module_digest(module.__name__), [self.code_id(value) for value in others]]

    # References ---------------------------------------------------------------------------------

    def _targets(
        self, name: str, code: types.CodeType, space: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Yield each reference of a code object, and the part that it leads to."""
        found = references(code)
        for chain in found.globals:
            target = self._target(name, chain, space)
            if target is not None:
                yield ".".join(chain), target
        for level, module, taken in found.imports:
            yield from self._imported(name, space, "." * level + module, taken)

    def _target(self, name: str, chain: tuple[str, ...], space: Mapping[str, Any]) -> str | None:
        first = chain[0]
        self._watch(lambda: (space.get(first, _MISSING),))
        if first not in space:
            if first in _DYNAMIC:
                self._cannot(f"{_shown(name)} calls {first}()")
            elif not hasattr(builtins, first) and first not in ("__class__", "__module__"):
                self._cannot(f"{_shown(name)} uses {first}, which is not defined")
            return None
        if first.startswith("__") and first.endswith("__"):
            return None
        return self._reached(name, str(space.get("__name__", "")), space[first], chain)

    def _reached(self, name: str, module: str, value: Any, chain: tuple[str, ...]) -> str | None:
        """Follow the attributes of modules along a chain, and return the part where it ends."""
        names = list(chain[1:])
        constant = chain[0]
        while isinstance(value, types.ModuleType) and names:
            if not is_project(value.__name__):
                if (value.__name__, names[0]) in _IMPORTERS:
                    self._cannot(f"{_shown(name)} calls {value.__name__}.{names[0]}()")
                break
            owner, module, constant = value, value.__name__, names.pop(0)
            value = _attribute(owner, constant)
            if value is _MISSING:
                self._cannot(f"{_shown(name)} uses {module}.{constant}, which is not defined")
                return None
            self._watch(lambda o=owner, c=constant: (_attribute(o, c),))  # type: ignore[misc]
        if _is_code(value):
            return self.code_id(value)
        return self._constant(module, constant, value)

    def _constant(self, module: str, name: str, value: Any) -> str | None:
        part = f"constant:{module}.{name}"
        if part in self.parts:
            return part
        self.parts[part] = ""  # met again while its own content is written
        try:
            digest = Contents(self.code_id).part([value, binding_digest(module, name)])
        except UnstableValueError as error:
            del self.parts[part]
            self._cannot(f"the global name {module}.{name} is {error.reason}")
            return None
        self.parts[part] = digest
        self._note_mutable(value)
        return part

    def _imported(
        self, name: str, space: Mapping[str, Any], module: str, taken: tuple[str, ...]
    ) -> Iterator[tuple[str, str]]:
        """Yield what an import inside a function leads to; the project's modules are imported."""
        package = space.get("__package__") or str(space.get("__name__", "")).rpartition(".")[0]
        try:
            absolute = importlib.util.resolve_name(module, package)
            if not is_project(absolute):
                self._note_package(absolute)
                return
            found = importlib.import_module(absolute)
        except (ImportError, ValueError) as error:
            self._cannot(
                f"{_shown(name)} imports {module}, which cannot be imported here ({error})"
            )
            return
        for attribute in taken or ("",):
            chain = (absolute, attribute) if attribute not in ("", "*") else (absolute,)
            target = self._reached(name, absolute, found, chain)
            if target is not None:
                yield ".".join(chain), target

    # Validity -----------------------------------------------------------------------------------

    def is_current(self) -> bool:
        """Return whether all names still lead to the same objects; see :meth:`mutable_digest`."""
        return all(
            len(found := look()) == len(seen)
            and all(a is b for a, b in zip(found, seen, strict=True))
            for look, seen in self._watched
        )

    def mutable_digest(self) -> str:
        """Return the digest of all values that may change while names still lead to them."""
        return Contents(self.code_id).part(self._mutable) if self._mutable else ""

    def _watch(self, look: Callable[[], tuple[Any, ...]]) -> None:
        self._watched.append((look, look()))

    def _note_mutable(self, value: Any) -> None:
        if not _is_fixed(value):
            self._mutable.append(value)

    def _note_imports(self, module: str | None) -> None:
        """Note the packages that a module imports, by what its names are."""
        loaded = sys.modules.get(module or "")
        if loaded is None or f"imports:{module}" in self._names:
            return
        self._names[f"imports:{module}"] = 1
        for value in list(vars(loaded).values()):
            owner = value.__name__ if isinstance(value, types.ModuleType) else None
            owner = owner or (getattr(value, "__module__", None) if _is_code(value) else None)
            if isinstance(owner, str) and not is_project(owner):
                self._note_package(owner)


_MISSING: Final = object()
#: Content of a variable of an enclosing function that has no value yet.
_EMPTY: Final = (..., "not assigned")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.FunctionType, type)


def _is_fixed(value: Any) -> bool:
    """Return whether a value cannot change; such values are not read again for each call."""
    if type(value) is tuple:
        return all(map(_is_fixed, value))
    return isinstance(value, _PLAIN)


def _is_code(value: Any) -> bool:
    return isinstance(
        value,
        types.FunctionType | types.BuiltinFunctionType | types.ModuleType | type | _KEEPER,
    )


def _attribute(module: types.ModuleType, name: str) -> Any:
    found = vars(module).get(name, _MISSING)
    return sys.modules.get(f"{module.__name__}.{name}", _MISSING) if found is _MISSING else found


def _cell_values(cells: tuple[types.CellType, ...]) -> tuple[Any, ...]:
    values = []
    for cell in cells:
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            values.append(_EMPTY)
    return tuple(values)


def _unwrapped(value: Any) -> Any:
    """Return the functions of a descriptor, or the value itself."""
    if isinstance(value, staticmethod | classmethod):
        return [type(value).__name__, value.__func__]
    if isinstance(value, property):
        return ["property", value.fget, value.fset, value.fdel]
    if isinstance(value, functools.cached_property):
        return ["cached_property", value.func]
    return value


def _shape(code: types.CodeType) -> list[Any]:
    """Return what a code object does, without where it stands: lines and file are left out."""
    return [
        code.co_code,
        [_shape(c) if isinstance(c, types.CodeType) else c for c in code.co_consts],
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags],
        code.co_exceptiontable,
    ]


def _shown(name: str) -> str:
    return name.partition(":")[2].partition("#")[0]
