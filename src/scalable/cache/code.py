"""Code reachable from a task: functions, classes, constants and modules of the user's project.

Follows static references: globals, module attributes, closures, defaults, base classes, local
imports. Python and installed packages are represented by their versions.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import enum
import functools
import importlib
import inspect
import logging
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from scalable.cache.content import (
    Contents,
    binding_digest,
    is_held,
    is_known,
    is_made,
    is_project,
    module_digest,
)
from scalable.cache.errors import UnstableValueError

logger = logging.getLogger("scalable.cache")

#: Attribute with the options of a function that :func:`scalable.cached` has decorated.
OPTIONS: Final = "__scalable_cached__"
_KEEPER: Final = type(functools.lru_cache(int))


class Reach:
    """Code reachable from one task, as parts of its cache key."""

    def __init__(self) -> None:
        #: Digest by name of the part, which starts with ``code:``, ``constant:`` or ``module:``.
        self.parts: dict[str, str] = {}
        #: Modules of installed packages that the reached modules import.
        self.packages: set[str] = set()
        #: References that cannot be followed, as sentences.
        self.unfollowed: list[str] = []
        self._watched: list[tuple[Callable[[], tuple[Any, ...]], tuple[Any, ...]]] = []
        self._mutable: list[Any] = []
        self._ids: dict[int, tuple[str, Any]] = {}
        self._names: dict[str, int] = {}
        self._constants: dict[str, Any] = {}
        self._waiting: list[tuple[str, Any]] = []

    def code_id(self, item: Any) -> str:
        """Return the part name of a function, class or module, and queue it for ``follow``."""
        known = self._ids.get(id(item))
        if known is not None:
            return known[0]
        if isinstance(item, types.ModuleType):
            module, qualname, name = item.__name__, "", f"module:{item.__name__}"
        else:
            qualname = str(getattr(item, "__qualname__", None) or getattr(item, "__name__", "?"))
            module = str(getattr(item, "__module__", None) or "builtins")
            name = f"code:{module}.{qualname}"
        if not is_project(module) and not is_made(item, module, qualname):
            if module != "builtins" and (module, qualname) in IMPORTERS:
                self._cannot(f"{module}.{qualname}() reaches code by names")
            self._note_package(module)
            return self._named(item, name)
        # Two functions may share a name: lambdas on one line, or a function that was redefined.
        number = self._names[name] = self._names.get(name, 0) + 1
        name = name if number == 1 else f"{name}#{number}"
        self._waiting.append((name, item))
        return self._named(item, name)

    def _named(self, item: Any, name: str) -> str:
        self._ids[id(item)] = (name, item)  # kept, so that its id is not reused
        return name

    def follow(self) -> None:
        """Follow all references of the queued code, until no new code is found."""
        while self._waiting:
            name, item = self._waiting.pop(0)
            try:
                self.parts[name] = self._digest(name, item)
            except UnstableValueError as error:
                self._cannot(f"{_own_name(name)} holds {error.reason}")

    def _cannot(self, sentence: str) -> None:
        logger.debug("a reference cannot be followed: %s", sentence)
        if sentence not in self.unfollowed:
            self.unfollowed.append(sentence)

    def _note_package(self, module: str) -> None:
        top = module.partition(".")[0]
        self.packages.add(module if is_project(top) else top)  # the project's own code in C

    # What each kind of code is made of -----------------------------------------------------------

    def _digest(self, name: str, item: Any) -> str:
        contents = Contents(self.code_id)
        if isinstance(item, types.ModuleType):
            return contents.part(self._module(item))
        if isinstance(item, type):
            return contents.part(self._class(item))
        if isinstance(item, types.FunctionType):
            options = options_of(item)
            if options is not None:  # the wrapper's code is this package's
                said = options.version, options.ignore, options.depends_on
                self._note_mutable(said)
                return contents.part(["cached", said, vars(item)["__wrapped__"]])
            return contents.part(self._function(name, item))
        wrapped = getattr(item, "__wrapped__", None) or getattr(item, "py_func", None)
        if wrapped is not None:
            return contents.part([type(item).__qualname__, wrapped])
        raise UnstableValueError(item, "has code that cannot be read")

    def _function(self, name: str, function: types.FunctionType) -> list[Any]:
        cells = function.__closure__ or ()
        registry = getattr(function, "registry", {}) if hasattr(function, "dispatch") else {}
        self._watch(
            lambda: (
                function.__code__,
                function.__defaults__,
                function.__kwdefaults__,
                *cell_values(cells),
                *vars(function).values(),
                *registry.values(),
            )
        )
        if isinstance(registry, Mapping) and registry:  # singledispatch
            return ["dispatch", [(kind, chosen) for kind, chosen in registry.items()]]
        held = (function.__defaults__, function.__kwdefaults__, *cell_values(cells))
        for value in (*held, *attributes(function).values()):
            self._note_mutable(value)
        parts = [
            shape(function.__code__),
            function.__defaults__,
            function.__kwdefaults__,
            cell_values(cells),
            attributes(function),
            annotated(function),
        ]
        module = function.__module__ or ""
        if not is_project(module) and is_known(module):
            self._note_package(module)  # a package made it: its version represents the rest
            return parts
        self._note_imports(module)
        return [*parts, list(self._targets(name, function.__code__, function.__globals__))]

    def _class(self, kind: type) -> list[Any]:
        self._note_imports(kind.__module__)
        self._watch(lambda: tuple(vars(kind).values()))
        found: list[Any] = []
        for attribute, value in members(kind):
            try:
                Contents(self.code_id).part(value)
            except UnstableValueError:
                # Its definition represents it: the worker makes its own from the same source.
                source = binding_digest(kind.__module__, kind.__qualname__.partition(".")[0])
                if source is None:
                    raise
                found.append((attribute, source))
            else:
                self._note_mutable(value)
                found.append((attribute, value))
        types_of_fields = [self.code_id(one) for one in annotating(kind)]
        said = [declared(kind), metadata(kind), types_of_fields]
        return [kind.__qualname__, kind.__bases__, type(kind), found, said]

    def _module(self, module: types.ModuleType) -> list[Any]:
        """Return the content of a module of which the task may use any name."""
        self._note_imports(module.__name__)
        self._watch(lambda: tuple(vars(module).values()))
        found: list[tuple[str, Any]] = []
        for name, value in sorted(vars(module).items()):
            if _is_code(value):
                if getattr(value, "__module__", None) != module.__name__ or not is_held(
                    value, module.__name__, name
                ):
                    found.append((name, self.code_id(value)))
            elif name not in OF_MODULES:
                # The module's source represents a value without stable content.
                with suppress(UnstableValueError):
                    found.append((name, Contents(self.code_id).part(value)))
                    self._note_mutable(value)
        source = module_digest(module.__name__)
        if source is None:
            raise UnstableValueError(module, "has no source that can be read")
        return [source, found]

    # References ---------------------------------------------------------------------------------

    def _targets(
        self, name: str, code: types.CodeType, space: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Yield each reference in a code object, and the part that it leads to."""
        found = references(code)
        for hidden in sorted(found.names & HIDDEN):
            self._cannot(f"{_own_name(name)} uses {hidden}")
        for chain in found.globals:
            target = self._target(name, chain, space)
            if target is not None:
                yield ".".join(chain), target
        for level, module, taken in found.imports:
            whole = "." * level + module
            yield from self._imported(name, space, whole, taken, found.names)

    def _target(self, name: str, chain: tuple[str, ...], space: Mapping[str, Any]) -> str | None:
        first = chain[0]
        self._watch(lambda: (space.get(first, getattr(builtins, first, _MISSING)),))
        if first in OF_MODULES:
            return None
        if first in space:
            return self._reached(name, str(space.get("__name__", "")), space[first], chain)
        if first in DYNAMIC:
            self._cannot(f"{_own_name(name)} calls {first}()")
        elif hasattr(builtins, first):
            return self._of_package("builtins", first, getattr(builtins, first))
        elif first != "__class__":
            self._cannot(f"{_own_name(name)} uses {first}, which is not defined")
        return None

    def _reached(self, name: str, module: str, value: Any, chain: tuple[str, ...]) -> str | None:
        """Return the part that a chain of module attributes leads to."""
        names = list(chain[1:])
        constant = chain[0]
        while isinstance(value, types.ModuleType) and names:
            owner, module, constant = value, value.__name__, names.pop(0)
            if (module, constant) in IMPORTERS:
                self._cannot(f"{_own_name(name)} calls {module}.{constant}()")
                return None
            value = _attribute(owner, constant)
            if value is _MISSING and not is_project(module):
                value = owner  # the package makes it on first access
                break
            if value is _MISSING:
                self._cannot(f"{_own_name(name)} uses {module}.{constant}, which is not defined")
                return None
            self._watch(lambda o=owner, c=constant: (_attribute(o, c),))  # type: ignore[misc]
        if module and not is_project(module) and is_known(module):
            return self._of_package(module, constant, value)
        return self.code_id(value) if _is_code(value) else self._constant(module, constant, value)

    def _of_package(self, module: str, name: str, value: Any) -> str | None:
        """Return the part for a package's attribute: its code, or a value set by the program."""
        self._note_package(module)
        if _is_code(value):
            return self.code_id(value)
        return self._constant(module, name, value) if isinstance(value, _PLAIN) else None

    def _constant(self, module: str, name: str, value: Any) -> str | None:
        part = f"constant:{module}.{name}"
        # Two global namespaces may share a module name, such as those of exec().
        while part in self.parts and self._constants[part] is not value:
            part += "#"
        if part in self.parts:
            return part
        self._constants[part] = value
        self.parts[part] = ""  # found again if its content refers to itself
        try:
            binding = binding_digest(module, name) if is_project(module) else None
            digest = Contents(self.code_id).part([value, binding])
        except UnstableValueError as error:
            del self.parts[part]
            self._cannot(f"the global name {module}.{name} is {error.reason}")
            return None
        self.parts[part] = digest
        self._note_mutable(value)
        return part

    def _imported(
        self,
        name: str,
        space: Mapping[str, Any],
        module: str,
        taken: tuple[str, ...],
        names: frozenset[str],
    ) -> Iterator[tuple[str, str]]:
        """Yield the targets of an import inside a function, importing the project's modules."""
        package = space.get("__package__") or str(space.get("__name__", "")).rpartition(".")[0]
        try:
            absolute = importlib.util.resolve_name(module, package)
            if not is_project(absolute):
                self._note_package(absolute)
                for attribute in sorted(names.union(taken)):
                    if (absolute, attribute) in IMPORTERS:
                        self._cannot(f"{_own_name(name)} calls {absolute}.{attribute}()")
                return
            found = importlib.import_module(absolute)
            for attribute in taken:
                if attribute != "*" and _attribute(found, attribute) is _MISSING:
                    importlib.import_module(f"{absolute}.{attribute}")
        except (ImportError, ValueError) as error:
            self._cannot(
                f"{_own_name(name)} imports {module}, which cannot be imported here ({error})"
            )
            return
        for attribute in taken or ("",):
            chain = (absolute, attribute) if attribute not in ("", "*") else (absolute,)
            target = self._reached(name, absolute, found, chain)
            if target is not None:
                yield ".".join(chain), target

    # Validity -----------------------------------------------------------------------------------

    def is_current(self) -> bool:
        """Return whether all names still refer to the same objects. Their content may differ."""
        return all(
            len(found := look()) == len(seen)
            and all(a is b for a, b in zip(found, seen, strict=True))
            for look, seen in self._watched
        )

    def mutable_digest(self) -> str:
        """Return the digest of all reachable mutable values."""
        try:
            return Contents(self.code_id).part(self._mutable) if self._mutable else ""
        except UnstableValueError as error:  # a value without stable content was added
            return error.reason

    def _watch(self, look: Callable[[], tuple[Any, ...]]) -> None:
        self._watched.append((look, look()))

    def _note_mutable(self, value: Any) -> None:
        if not _is_fixed(value):
            self._mutable.append(value)

    def _note_imports(self, module: str | None) -> None:
        """Record the packages that a module's names come from."""
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
_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.FunctionType, type)


def _is_fixed(value: Any) -> bool:
    """Return whether a value is immutable, so that it need not be read for each task."""
    if type(value) is tuple:
        return all(map(_is_fixed, value))
    # A subclass, for example of str, may have attributes.
    return type(value) in _PLAIN or isinstance(value, type)


def options_of(function: Any) -> Any:
    """Return the options of a function that ``scalable.cached`` has decorated, or None."""
    given = getattr(function, "__dict__", {}).get(OPTIONS)
    # A decorator around such a function copies the attribute, but is another function.
    return given[0] if given is not None and given[1] is function else None


def _is_code(value: Any) -> bool:
    return isinstance(
        value,
        types.FunctionType | types.BuiltinFunctionType | types.ModuleType | type | _KEEPER,
    )


def _attribute(module: types.ModuleType, name: str) -> Any:
    found = vars(module).get(name, _MISSING)
    return sys.modules.get(f"{module.__name__}.{name}", _MISSING) if found is _MISSING else found


def _own_name(name: str) -> str:
    return name.partition(":")[2].partition("#")[0]


# Definitions --------------------------------------------------------------------------------------

#: Class attributes that Python or a library derives from others; see :func:`declared`.
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
        "__slotnames__",  # pickling an object of the class writes it
        "__abstractmethods__",
        "_abc_impl",
        "__parameters__",
        "__orig_bases__",
        "_value2member_map_",  # an enumeration adds combined flags as they are used
    }
)
#: Content of an enclosing function's variable that is not assigned yet.
_EMPTY: Final = (..., "not assigned")
_ADDRESS: Final = " at 0x"
_NAME: Final = re.compile(r"[^\W\d]\w*")


def shape(code: types.CodeType) -> list[Any]:
    """Return the behaviour of a code object as values, without its file and line numbers."""
    return [
        code.co_code,
        [shape(c) if isinstance(c, types.CodeType) else c for c in code.co_consts],
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags],
        code.co_exceptiontable,
    ]


def cell_values(cells: tuple[types.CellType, ...]) -> tuple[Any, ...]:
    """Return the values of a function's closure variables."""
    values = []
    for cell in cells:
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            values.append(_EMPTY)
    return tuple(values)


def attributes(function: types.FunctionType) -> dict[str, Any]:
    """Return the attributes set on a function, without ``__wrapped__``."""
    return {name: value for name, value in vars(function).items() if name != "__wrapped__"}


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each attribute defined by a class itself."""
    for name in sorted(vars(kind)):
        value = _unwrapped(vars(kind)[name])
        if name not in _MADE and not isinstance(value, types.MemberDescriptorType):
            yield name, value


def _unwrapped(value: Any) -> Any:
    """Return the functions in a descriptor, or the value itself if it is not a descriptor."""
    if isinstance(value, staticmethod | classmethod):
        return [type(value).__name__, value.__func__]
    if isinstance(value, property):
        return ["property", value.fget, value.fset, value.fdel]
    if isinstance(value, functools.cached_property):
        return ["cached_property", value.func]
    return value


def declared(kind: type) -> list[Any]:
    """Return a class's docstring, annotations and generic bases, which programs may read."""
    text = vars(kind).get("__doc__")
    return [
        text if isinstance(text, str) and _ADDRESS not in text else None,
        annotated(kind),
        [_as_text(base) for base in vars(kind).get("__orig_bases__", ())],
    ]


def metadata(kind: type) -> list[Any]:
    """Return the metadata of dataclass fields, and the values of enumeration members."""
    fields = vars(kind).get("__dataclass_fields__", {}) if dataclasses.is_dataclass(kind) else {}
    found: list[Any] = [(name, dict(one.metadata)) for name, one in fields.items() if one.metadata]
    if isinstance(kind, enum.EnumMeta):
        found += [(name, member.value) for name, member in vars(kind)["_member_map_"].items()]
    return found


def annotated(item: Any) -> list[tuple[str, str]]:
    """Return annotations as names and strings, skipping any that cannot be evaluated."""
    with suppress(Exception):  # annotations are expressions of the user
        return [(name, _as_text(kind)) for name, kind in inspect.get_annotations(item).items()]
    return []


def annotating(kind: type) -> Iterator[type]:
    """Yield the classes that a class's annotations refer to."""
    with suppress(Exception):  # annotations are expressions of the user
        space = vars(sys.modules.get(kind.__module__, types))
        for given in inspect.get_annotations(kind).values():
            yield from _classes(given, space)


def _classes(given: Any, space: dict[str, Any]) -> Iterator[type]:
    if isinstance(given, str):
        found = (space.get(name) for name in _NAME.findall(given))
        yield from (one for one in found if isinstance(one, type))
    elif isinstance(given, type) and not isinstance(given, types.GenericAlias):
        yield given
    else:
        for one in getattr(given, "__args__", ()):
            yield from _classes(one, space)


def _as_text(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return str(text).partition(_ADDRESS)[0]


# References ---------------------------------------------------------------------------------------

_GLOBALS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})

#: Built-in functions that reach code by names that are known only at run time.
DYNAMIC: Final = frozenset({"eval", "exec", "compile", "globals", "__import__"})
#: Names in Python's own modules that reach code in the same way.
IMPORTERS: Final = frozenset(
    {
        *(("builtins", name) for name in DYNAMIC),
        ("importlib", "import_module"),
        ("importlib.util", "module_from_spec"),
        ("pkgutil", "resolve_name"),
        ("runpy", "run_module"),
        ("runpy", "run_path"),
        ("sys", "modules"),
    }
)
#: Attributes by which code reaches other code that is known only at run time.
HIDDEN: Final = frozenset({"__globals__", "__subclasses__", "f_globals"})
#: Names that Python gives to each module.
OF_MODULES: Final = frozenset(
    {
        "__builtins__",
        "__cached__",
        "__file__",
        "__loader__",
        "__name__",
        "__package__",
        "__path__",
        "__spec__",
    }
)


@dataclass(frozen=True)
class References:
    """Names used by a code object and the code objects within it."""

    #: Global names with attributes: ``np.random.rand`` is ``("np", "random", "rand")``.
    globals: tuple[tuple[str, ...], ...]
    #: Imports at run time: level (0 is absolute), module, and the names taken from it.
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    #: All names of globals and attributes that are read.
    names: frozenset[str]


@lru_cache(maxsize=4096)
def references(code: types.CodeType) -> References:
    """Return the names used by a code object and its nested ones, each once, in order."""
    chains: dict[tuple[str, ...], None] = {}
    imports: dict[tuple[int, str, tuple[str, ...]], None] = {}
    names: set[str] = set()
    for part in with_nested(code):
        names.update(part.co_names)
        instructions = [i for i in dis.get_instructions(part) if i.opname != "EXTENDED_ARG"]
        for number, instruction in enumerate(instructions):
            if instruction.opname in _GLOBALS:
                chain = [str(instruction.argval)]
                for following in instructions[number + 1 :]:
                    if following.opname not in _ATTRIBUTES:
                        break
                    chain.append(str(following.argval))
                chains[tuple(chain)] = None
            elif instruction.opname == "IMPORT_NAME":
                level, taken = (instructions[number - n].argval for n in (2, 1))
                imports[int(level), str(instruction.argval), tuple(taken or ())] = None
    return References(tuple(chains), tuple(imports), frozenset(names))


def with_nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and the code objects of functions, classes, comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from with_nested(constant)
