"""Code reachable from a task: functions, classes, constants and modules of the user's project.

Follows static references: globals, module attributes, closures, defaults, base classes, local
imports. Python and installed packages are represented by their versions.
"""

from __future__ import annotations

import abc
import builtins
import enum
import functools
import importlib
import logging
import sys
import types
from _abc import _get_dump  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from scalable.cache.content import Contents
from scalable.cache.definitions import (
    annotated,
    annotating,
    attributes,
    cell_values,
    declared,
    held,
    members,
    metadata,
    opened,
)
from scalable.cache.errors import UnstableValueError
from scalable.cache.packages import is_held, is_known, is_made, is_project
from scalable.cache.references import (
    HIDDEN,
    READING,
    READING_TEXTS,
    Chain,
    Import,
    Outside,
    Place,
    behaviour,
    binding_digest,
    is_draw,
    module_digest,
    module_source,
    outside,
    outside_of,
    outside_value,
    reads,
    references,
    with_nested,
)

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
        #: Files that the code reads, as sentences. A task may declare them as arguments.
        self.reads: dict[str, None] = {}
        self._own = "an argument"
        self._draws: dict[str, None] = {}
        self._is_seeded = self._reads_texts = False
        self._texts: list[tuple[str, Any]] = []
        self._noted: set[str] = set()
        #: Ids of code that is followed apart, by this object or one around it.
        self.apart: frozenset[int] = frozenset()
        self.watched: list[tuple[Callable[[], tuple[Any, ...]], tuple[Any, ...]]] = []
        self.mutable: list[Any] = []
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
            self._note_package(module)
            return self._named(item, name)
        # Two functions may share a name: lambdas on one line, or a function that was redefined.
        number = self._names[name] = self._names.get(name, 0) + 1
        name = name if number == 1 else f"{name}#{number}"
        self._waiting.append((name, item))
        return self._named(item, name)

    def held_id(self, item: Any) -> str:
        """Return the part name of code that a value contains, as ``code_id`` does."""
        found = outside_value(item)
        if found is not None:
            self._use(*found)
        return self.code_id(item)

    def _named(self, item: Any, name: str) -> str:
        self._ids[id(item)] = (name, item)  # kept, so that its id is not reused
        return name

    def waits_for_classes(self) -> bool:
        """Return whether classes wait to be followed, and no other code."""
        waiting = (item for _, item in self._waiting)
        return bool(self._waiting) and all(isinstance(item, type) for item in waiting)

    def references(self) -> tuple[tuple[str, int], ...]:
        """Return name and id of all that was referred to, in order."""
        return tuple((name, number) for number, (name, _) in self._ids.items())

    def follow(self) -> None:
        """Follow all references of the queued code, until no new code is found."""
        while self._waiting:
            name, item = self._waiting.pop(0)
            self._own = _own_name(name)
            try:
                self.parts[name] = self._digest(name, item)
            except UnstableValueError as error:
                self._cannot(f"{self._own} holds {error.reason}")
        self._own = "an argument"
        if not self._is_seeded:
            for sentence in self._draws:
                self._cannot(sentence)
        if self._reads_texts:
            self.parts["docstrings"] = Contents(self.code_id).part(self._texts)

    def _apart_from(self, item: Any, targets: Callable[[Reach], Any]) -> tuple[str, Reach]:
        """Return the digest of code whose references count, even if some cannot be followed."""
        inner = Reach()
        if id(item) in self.apart:  # it refers to itself
            return "", inner
        inner.apart = self.apart | {id(item)}
        found = targets(inner)
        inner.follow()
        self.packages |= inner.packages
        return Contents(self.code_id).part([found, sorted(inner.parts.items())]), inner

    def _use(self, found: Outside, label: str, places: tuple[Place, ...] = ()) -> None:
        """Note a use of something that a key does not cover."""
        sentence = f"{self._own} {found.does} {label}"
        if found.is_file:
            if not places or any(reads(one, is_method=label[0] == ".") for one in places):
                self.reads[sentence] = None
            return
        if is_draw(found):
            if label.endswith(("seed()", "setstate()", "set_state()")):
                self._is_seeded = True
            else:
                self._draws[sentence] = None
            return
        if places:
            sentence += f" ({Path(places[0].file).name}:{places[0].line})"
        self._cannot(sentence)

    def _cannot(self, sentence: str) -> None:
        logger.debug("a reference cannot be followed: %s", sentence)
        if sentence not in self.unfollowed:
            self.unfollowed.append(sentence)

    def _note_package(self, module: str) -> None:
        top = module.partition(".")[0]
        self.packages.add(module if is_project(top) else top)  # the project's own code in C

    # What each kind of code is made of -----------------------------------------------------------

    def _digest(self, name: str, item: Any) -> str:
        contents = Contents(self.held_id)
        if isinstance(item, types.ModuleType):
            return contents.part(self._module(item))
        if isinstance(item, type):
            return contents.part(self._class(name, item))
        if isinstance(item, types.FunctionType):
            options = options_of(item)
            if options is not None:  # the wrapper's code is this package's
                said = options.version, options.ignore, options.depends_on
                self._note_mutable(said)
                own: Any = vars(item)["__wrapped__"]
                if options.depends_on:  # what cannot be followed there is declared
                    own, inner = self._apart_from(own, lambda reach, own=own: reach.code_id(own))  # type: ignore[misc]
                    self.watched += inner.watched
                    self.mutable += inner.mutable
                return contents.part(["cached", said, own])
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
        given = (function.__defaults__, function.__kwdefaults__, *cell_values(cells))
        for value in (*given, *attributes(function).values()):
            self._note_mutable(value)
        module = function.__module__ or ""
        loaded = sys.modules.get(module)
        source = module_source(loaded) if loaded is not None and is_project(module) else None
        parts = [
            behaviour(function.__code__, source),
            function.__defaults__,
            function.__kwdefaults__,
            cell_values(cells),
            attributes(function),
            annotated(function),
        ]
        if not is_project(module) and is_known(module):
            self._note_package(module)  # a package made it: its version represents the rest
            return parts
        self._note_imports(module)
        self._texts.append((name, [function.__doc__, *_texts(function.__code__)]))
        return [*parts, list(self.targets(function.__code__, function.__globals__))]

    def _class(self, name: str, kind: type) -> list[Any]:
        self._note_imports(kind.__module__)
        self._watch(lambda: tuple(vars(kind).values()))
        found: list[Any] = []
        for attribute, value in members(kind):
            try:
                Contents(self.held_id).part(value)
            except UnstableValueError:
                # The worker makes its own from the same definition.
                seen = self._opened(value)
                source = self._definition(kind, attribute)
                if seen is None and source is None:
                    raise
                found.append((attribute, [seen, source]))
            else:
                self._note_mutable(value)
                found.append((attribute, value))
        types_of_fields = [self.code_id(one) for one in annotating(kind)]
        text, *said = declared(kind)
        if type(kind) in _PLAIN_METACLASSES:
            self._texts.append((name, text))
        else:
            said.append(text)  # a package may read it
        said += [metadata(kind), types_of_fields]
        if isinstance(kind, enum.EnumMeta):
            self._watch(lambda: _of_members(kind))
            for value in _of_members(kind):
                self._note_mutable(value)
        if isinstance(kind, abc.ABCMeta):
            self._watch(lambda: _registered(kind))
            said.append(_registered(kind))
        return [kind.__qualname__, kind.__bases__, type(kind), found, said]

    def _opened(self, value: Any) -> Any:
        """Return the parts of a class attribute that cannot be pickled, or None if hidden."""
        try:
            found = opened(value, self.held_id)
        except UnstableValueError:
            return None
        self._watch(lambda: tuple(held(value) or ()))
        return found

    def _definition(self, kind: type, attribute: str) -> Any:
        """Return the content of a class's definition, or None if it does not set an attribute."""
        module = sys.modules.get(kind.__module__)
        source = None if module is None else module_source(module)
        digest = binding_digest(kind.__module__, kind.__qualname__.partition(".")[0])
        if module is None or source is None or digest is None:
            return None
        for code in with_nested(source.code):
            if code.co_qualname == kind.__qualname__ and attribute in code.co_names:
                space = vars(module)
                own, _ = self._apart_from(kind, lambda reach: list(reach.targets(code, space)))  # noqa: B023 - used at once
                return [digest, own]
        return None

    def _module(self, module: types.ModuleType) -> list[Any]:
        """Return the content of a module of which the task may use any name."""
        self._note_imports(module.__name__)
        self._watch(lambda: tuple(vars(module).values()))
        found: list[tuple[str, Any]] = []
        for attribute, value in sorted(vars(module).items()):
            if _is_code(value):
                if _module_of(value) != module.__name__ or not is_held(
                    value, module.__name__, attribute
                ):
                    found.append((attribute, self.code_id(value)))
            elif attribute not in OF_MODULES:
                # The module's source represents a value without stable content.
                with suppress(UnstableValueError):
                    found.append((attribute, Contents(self.code_id).part(value)))
                    self._note_mutable(value)
        digest, source = module_digest(module.__name__), module_source(module)
        if digest is None or source is None:
            raise UnstableValueError(module, "has no source that can be read")
        return [digest, found, list(self.targets(source.code, vars(module)))]

    # References ---------------------------------------------------------------------------------

    def targets(self, code: types.CodeType, space: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield each reference in a code object, and the part that it leads to."""
        found = references(code)
        for hidden in sorted(found.names & HIDDEN):
            self._cannot(f"{self._own} uses {hidden}")
        self._reads_texts |= bool(found.names & READING_TEXTS)
        for attribute in found.attributes.keys() & READING.keys():
            self._use(READING[attribute], f".{attribute}()", found.attributes[attribute])
        # Imports first: modules may register what the code finds by other names.
        for one in found.imports:
            yield from self._imported(space, one, found.names)
        for chain, places in found.globals.items():
            target = self._target(chain, space, places, found.names)
            if target is not None:
                yield ".".join(chain), target
        yield from self._extensions(found.names)

    def _target(
        self,
        chain: Chain,
        space: Mapping[str, Any],
        places: tuple[Place, ...],
        names: frozenset[str],
    ) -> str | None:
        first = chain[0]
        self._watch(lambda: (space.get(first, getattr(builtins, first, _MISSING)),))
        module = str(space.get("__name__", ""))
        if first in OF_MODULES:
            # A path differs when the project moves, and a function may return it.
            return self._constant(module, first, space[first]) if first == "__file__" else None
        if first in space:
            return self._reached(module, space[first], chain, places, names)
        if hasattr(builtins, first):
            value = getattr(builtins, first)
            use = outside("builtins", first, value) if places else None
            if use is not None:
                self._use(*use, places)
            return self._of_package("builtins", first, value)
        if first != "__class__" and places:
            self._cannot(f"{self._own} uses {first}, which is not defined")
        return None

    def _reached(
        self,
        module: str,
        value: Any,
        chain: Chain,
        places: tuple[Place, ...],
        names: frozenset[str],
    ) -> str | None:
        """Return the part that a chain of module attributes leads to."""
        rest = list(chain[1:])
        constant = chain[0]
        use = None
        while isinstance(value, types.ModuleType) and rest:
            owner, module, constant = value, value.__name__, rest.pop(0)
            value = _attribute(owner, constant)
            if not is_project(module):
                use = use or outside(module, constant, None if value is _MISSING else value)
                if value is _MISSING:
                    value = owner  # the package makes it on first access
                    break
            elif value is _MISSING and "__getattr__" in vars(owner):
                value = owner  # any of its names may be used
                break
            elif value is _MISSING:
                self._cannot(f"{self._own} uses {module}.{constant}, which is not defined")
                return None
            self._watch(lambda o=owner, c=constant: (_attribute(o, c),))  # type: ignore[misc]
        if isinstance(value, types.ModuleType):
            use = use or (None if is_project(value.__name__) else outside_of(value.__name__, names))
        if places:
            use = use or outside_value(value)
            if use is not None:
                self._use(*use, places)
            if not (_is_code(value) and is_project(_module_of(value))):
                for one in READING.keys() & rest:
                    self._use(READING[one], f".{one}()", places)
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
            digest = Contents(self.held_id).part([value, binding])
        except UnstableValueError as error:
            del self.parts[part]
            self._cannot(f"the global name {module}.{name} is {error.reason}")
            return None
        self.parts[part] = digest
        self._note_mutable(value)
        return part

    def _imported(
        self, space: Mapping[str, Any], one: Import, names: frozenset[str]
    ) -> Iterator[tuple[str, str]]:
        """Yield the targets of an import inside a function, importing the project's modules."""
        package = space.get("__package__") or str(space.get("__name__", "")).rpartition(".")[0]
        written = "." * one.level + one.module
        try:
            module = importlib.util.resolve_name(written, package)
            # ``import a.b`` binds ``a``.
            bound = module if one.taken else module.partition(".")[0]
            if one.runs:
                _load(bound, module, one.taken)
        except (ImportError, ValueError) as error:
            if one.runs:
                self._cannot(
                    f"{self._own} imports {written}, which cannot be imported here ({error})"
                )
            return
        if not is_project(module):
            self._note_package(module)
        self._note_effects(module)
        # One that does not run with a function has run: the module's names refer to its modules.
        for chain in one.chains if one.runs else ():
            if not is_project(bound):
                self._in_package(bound, chain, names)
                continue
            whole = (bound, *chain)
            target = self._reached(bound, sys.modules[bound], whole, _ANYWHERE, names)
            if target is not None:
                yield ".".join(whole), target
            if not chain and is_project(module):
                yield module, self.code_id(sys.modules[module])

    def _in_package(self, module: str, chain: Chain, names: frozenset[str]) -> None:
        """Note a use of a package's name that a key does not cover, without importing it."""
        use = None if chain else outside_of(module, names)
        for name in chain:
            loaded = sys.modules.get(module)
            value = None if loaded is None else vars(loaded).get(name)
            use = use or outside(module, name, value)
            module = f"{module}.{name}"
        if chain and module in sys.modules:
            use = use or outside_of(module, names)
        if use is not None:
            self._use(*use)

    def _extensions(self, names: frozenset[str]) -> Iterator[tuple[str, str]]:
        """Yield what the project has added to classes of packages, under names that code uses."""
        for module, kinds in _EXTENDED.items():
            space = vars(sys.modules[module]) if module in sys.modules else {}
            for kind in kinds:
                members = vars(space.get(kind, object))
                for name in sorted(names & members.keys()):
                    added = getattr(members[name], "_accessor", members[name])
                    added = getattr(added, "fget", None) or getattr(added, "func", added)
                    if _is_code(added) and is_project(_module_of(added)):
                        yield f"{module}.{kind}.{name}", self.code_id(added)

    # Validity -----------------------------------------------------------------------------------

    def is_current(self) -> bool:
        """Return whether all names still refer to the same objects. Their content may differ."""
        return all(
            len(found := look()) == len(seen)
            and all(a is b for a, b in zip(found, seen, strict=True))
            for look, seen in self.watched
        )

    def mutable_digest(self) -> str:
        """Return the digest of all reachable mutable values."""
        try:
            return Contents(self.held_id).part(self.mutable) if self.mutable else ""
        except UnstableValueError as error:  # a value without stable content was added
            return error.reason

    def _watch(self, look: Callable[[], tuple[Any, ...]]) -> None:
        self.watched.append((look, look()))

    def _note_mutable(self, value: Any) -> None:
        if not _is_fixed(value):
            self.mutable.append(value)

    def _note_imports(self, module: str | None) -> None:
        """Record the packages that a module's names come from, and the effects of its import."""
        loaded = sys.modules.get(module or "")
        if not isinstance(loaded, types.ModuleType) or f"imports:{module}" in self._names:
            return
        self._names[f"imports:{module}"] = 1
        for value in list(vars(loaded).values()):
            owner = _module_of(value) if _is_code(value) else ""
            if owner and not is_project(owner):
                self._note_package(owner)
        self._note_effects(loaded.__name__)

    def _note_effects(self, module: str) -> None:
        """Record what a module does when it is imported, and those that it imports."""
        loaded = sys.modules.get(module)
        if loaded is None or module in self._noted or not is_project(module):
            return
        self._noted.add(module)
        self._note_effects(module.rpartition(".")[0])
        source = module_source(loaded)
        if source is None:
            return
        for level, name, taken in source.imports:
            with suppress(ImportError):
                package = str(getattr(loaded, "__package__", None) or "")
                found = importlib.util.resolve_name("." * level + name, package)
                for place in (found, *(f"{found}.{one}" for one in taken)):
                    self._note_effects(place)
        if source.effects is None or module == "__main__":
            return  # the rest of a script is not run by workers
        known = _EFFECTS.get(module)
        if known is None or known[0] is not source or not known[1].is_current():
            code, space = source.effects, vars(loaded)
            digest, inner = self._apart_from(code, lambda reach: list(reach.effects(code, space)))
            known = _EFFECTS[module] = source, inner, digest
        self.packages |= known[1].packages
        digest = Contents(self.code_id).part([source.effects_text, known[2]])
        self.parts[f"import:{module}"] = digest

    def effects(self, code: types.CodeType, space: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield the code to which statements of a module refer. They have run already."""
        for chain in references(code).globals:
            value = None if chain[0] in OF_MODULES else space.get(chain[0])
            for name in chain[1:]:
                if isinstance(value, types.ModuleType):
                    value = _attribute(value, name)
            if _is_code(value) and not isinstance(value, types.ModuleType):
                yield ".".join(chain), self.code_id(value)
            elif value is not None and _is_fixed(value):
                yield ".".join(chain), Contents(self.code_id).part(value)


#: Place of a use in a function, if the exact one is unknown.
_ANYWHERE: Final = (Place("", 0, 0),)
#: Classes to which projects add accessors and methods, by their package.
_EXTENDED: Final = {
    "pandas": ("DataFrame", "Series", "Index"),
    "xarray": ("Dataset", "DataArray", "DataTree"),
}
#: Metaclasses that do not read docstrings.
_PLAIN_METACLASSES: Final = (type, abc.ABCMeta, enum.EnumMeta)
#: Effects of the import of a module: its source as read, the code that they reach, and a digest.
_EFFECTS: Final[dict[str, tuple[Any, Reach, str]]] = {}
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


def _of_members(kind: enum.EnumMeta) -> tuple[Any, ...]:
    """Return the values of all attributes of an enumeration's members."""
    members: Iterable[Any] = kind.__members__.values()
    return tuple(value for member in members for value in vars(member).values())


def _is_code(value: Any) -> bool:
    if isinstance(value, types.BuiltinFunctionType | types.MethodType):  # may have an object
        is_method = not isinstance(value.__self__, types.ModuleType | None)
        return not is_method or outside_value(value) is not None
    return isinstance(value, types.FunctionType | types.ModuleType | type | _KEEPER)


def _module_of(item: Any) -> str:
    """Return the name of the module that code belongs to, or an empty string."""
    if isinstance(item, types.ModuleType):  # its own ``__getattr__`` is not asked
        return item.__name__
    owner = getattr(item, "__module__", None)
    return owner if isinstance(owner, str) else ""


def _attribute(module: types.ModuleType, name: str) -> Any:
    found = vars(module).get(name, _MISSING)
    return sys.modules.get(f"{module.__name__}.{name}", _MISSING) if found is _MISSING else found


def _load(bound: str, module: str, taken: tuple[str, ...]) -> None:
    """Import the project's modules that an import in a function would import."""
    if is_project(bound):  # then ``module`` is the project's, too, maybe one in C
        importlib.import_module(module)
    for name in taken if is_project(module) else ():
        found = sys.modules[module]
        if _attribute(found, name) is _MISSING and "__getattr__" not in vars(found):
            importlib.import_module(f"{module}.{name}")


def _texts(code: types.CodeType) -> Iterator[str]:
    """Yield the strings in a code object, among them docstrings."""
    for part in with_nested(code):
        yield from (constant for constant in part.co_consts if isinstance(constant, str))


def _registered(kind: abc.ABCMeta) -> tuple[type, ...]:
    """Return the classes that are registered as subclasses of an abstract class."""
    found = [one() for one in _get_dump(kind)[0]]
    named = [one for one in found if one is not None]
    return tuple(sorted(named, key=lambda one: f"{one.__module__}.{one.__qualname__}"))


def _own_name(name: str) -> str:
    return name.partition(":")[2].partition("#")[0]


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
