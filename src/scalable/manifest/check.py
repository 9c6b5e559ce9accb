"""Checks of a whole document: its records, and the references between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from scalable.manifest import faults as codes
from scalable.manifest.faults import Faults, suggest
from scalable.manifest.fields import ProviderOptions
from scalable.manifest.records import RecordWords, as_table, read_record
from scalable.manifest.schema import (
    OVERLAY_SECTIONS,
    REQUIRED_SECTIONS,
    SECTIONS,
    Component,
    Manager,
    Managers,
    Project,
    Target,
    Task,
)
from scalable.manifest.tree import (
    KeyedValue,
    MappingNode,
    Node,
    Path,
    Scalar,
    Sequence,
    children,
    is_broken,
    merge,
    plain_value,
    text_of,
)
from scalable.model import names
from scalable.model.names import Rule

OptionModels = Mapping[str, type[ProviderOptions] | None]
Result = TypeVar("Result")

_COMMON = tuple(Target.model_fields)
_COMPONENT = RecordWords(codes.E_UNKNOWN_COMPONENT_KEY, "key of a component")
_TARGET, _PROJECT, _TASK, _MANAGER = (
    RecordWords(noun=f"key of a {noun}") for noun in ("target", "project", "task", "manager")
)
_MANAGERS = RecordWords(noun="key of managers", also_known=("places",))
#: Replaces a section that is not a map; references into it are not checked.
_NOT_KNOWN = MappingNode()


@dataclass(frozen=True)
class CheckedTarget:
    """A valid target."""

    provider: str
    #: Options that every target may have.
    common: Target
    #: Options of the provider, with defaults.
    options: Mapping[str, Any]
    #: Names of the provider's options that the manifest sets.
    written: frozenset[str]
    #: Everything that the manifest sets, as plain values.
    data: Mapping[str, Any]
    #: Values of components that do not name them.
    worker_size: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Checked:
    """Valid parts of a document."""

    project: Project | None
    targets: Mapping[str, CheckedTarget]
    components: Mapping[str, Component]
    tasks: Mapping[str, Task]
    managers: Managers


@dataclass
class Checker:
    """Checker of one document and its overlays.
    Views (the document with one overlay or none) share unchanged records, each checked once.
    """

    models: OptionModels
    faults: Faults
    # The node is kept with its result, so that no other node can get its id.
    _done: dict[tuple[Path, int], tuple[Node, Any]] = field(default_factory=dict)

    def document(self, root: MappingNode) -> Checked:
        """Check one view, and return its valid parts."""
        for key, entry in root.entries.items():
            if key not in SECTIONS:
                message = f"unknown key {key!r} at the top of the manifest"
                hint = suggest(key, SECTIONS)
                self.faults.add(codes.E_UNKNOWN_TOP_KEY, (key,), entry.key_place, message, hint)
        self._required(root)
        overlays = self._table(root, "overlays")
        targets = self._table(root, "targets")
        components = self._table(root, "components")
        tasks = self._table(root, "tasks")
        checked = Checked(
            project=self._project(root),
            targets=self._each(targets, "targets", self._target),
            components=self._each(components, "components", self._component),
            tasks=self._each(tasks, "tasks", self._task),
            managers=self._managers(root, targets, components),
        )
        for name, entry in targets.entries.items():
            self._refer(
                (entry, "overlay"), ("targets", name), overlays, codes.E_UNKNOWN_OVERLAY, "overlay"
            )
        for name, entry in tasks.entries.items():
            self._refer(
                (entry, "component"),
                ("tasks", name),
                components,
                codes.E_TASK_COMPONENT_REF,
                "component",
            )
        self._order(tasks)
        return checked

    def overlays(self, root: MappingNode) -> dict[str, MappingNode]:
        """Return the overlays that can be merged, and report the errors of the others."""
        usable = {}
        targets = tuple(self._table(root, "targets").entries)
        for name, entry in self._table(root, "overlays").entries.items():
            path: Path = ("overlays", name)
            table = as_table(entry, path, self.faults)
            if table is None:
                continue
            self._overlay(table, path, targets)
            usable[name] = _usable(table, targets)
        return usable

    def _overlay(self, table: MappingNode, path: Path, known: tuple[str, ...]) -> None:
        for key, entry in table.entries.items():
            if key not in OVERLAY_SECTIONS:
                message = f"unknown key {key!r} in an overlay"
                hint = suggest(key, OVERLAY_SECTIONS)
                code = codes.E_UNKNOWN_TOP_KEY
                self.faults.add(code, (*path, key), entry.key_place, message, hint)
        targets = table.get("targets")
        for name, entry in _inside(targets, MappingNode):
            below = (*path, "targets", name)
            if name not in known:
                message = f"an overlay changes existing targets, and no target is called {name!r}"
                hint = suggest(str(name), known)
                self.faults.add(codes.E_BAD_OPTION, below, entry.key_place, message, hint)
            inner = dict(children(entry.node)).get("overlay")
            if inner:
                message = "an overlay cannot name another overlay"
                hint = "name it in the target itself"
                self.faults.add(codes.E_BAD_OPTION, (*below, "overlay"), inner.place, message, hint)

    def _required(self, root: MappingNode) -> None:
        for key in REQUIRED_SECTIONS:
            entry = root.get(key)
            empty = (
                isinstance(entry.node, MappingNode) and not entry.node.entries if entry else True
            )
            if entry is None or entry.is_null or (empty and key in ("targets", "components")):
                message = f"{key} is missing" if entry is None else f"{key} is empty"
                place = root.place if entry is None else entry.place
                hint = f"add `{key}:` - {SECTIONS[key]}"
                self.faults.add(codes.E_MISSING_KEY, (key,), place, message, hint)
        version = root.get("version")
        if version and not version.is_null and not is_broken(version.node):
            value = version.node.value if isinstance(version.node, Scalar) else None
            if type(value) is not int or value != 1:
                message = f"version must be 1, not {json.dumps(value)}"
                hint = "write `version: 1`, without quotes"
                self.faults.add(codes.E_BAD_VERSION, ("version",), version.place, message, hint)

    def _table(self, root: MappingNode, key: str) -> MappingNode:
        entry = root.get(key)
        if entry is None:
            return MappingNode()
        table = self._once((key,), entry, lambda: as_table(entry, (key,), self.faults))
        return _NOT_KNOWN if table is None else table

    def _each(
        self, table: MappingNode, section: str, check: Callable[[KeyedValue, Path], Result | None]
    ) -> dict[str, Result]:
        results = {}
        for name, entry in table.entries.items():
            path: Path = (section, name)
            result = self._once(path, entry, partial(check, entry, path))
            if result is not None:
                results[name] = result
        return results

    def _once(self, path: Path, entry: KeyedValue, check: Callable[[], Result]) -> Result:
        key = (path, id(entry.node))
        if key not in self._done:
            self._done[key] = (entry.node, check())
        result: Result = self._done[key][1]
        return result

    def _project(self, root: MappingNode) -> Project | None:
        entry = root.get("project")
        if entry is None or entry.is_null:
            return None
        return self._once(
            ("project", "*"),
            entry,
            lambda: read_record(Project, entry, ("project",), self.faults, _PROJECT),
        )

    def _component(self, entry: KeyedValue, path: Path) -> Component | None:
        self._name(names.TAG, entry, path)
        return read_record(Component, entry, path, self.faults, _COMPONENT)

    def _name(self, rule: Rule, entry: KeyedValue, path: Path) -> None:
        fault = rule.fault(str(path[-1]))
        if fault is not None:
            self.faults.add(codes.E_BAD_OPTION, path, entry.key_place, fault, rule.hint)

    def _task(self, entry: KeyedValue, path: Path) -> Task | None:
        self._name(names.TASK, entry, path)
        return read_record(Task, entry, path, self.faults, _TASK)

    def _target(self, entry: KeyedValue, path: Path) -> CheckedTarget | None:
        self._name(names.TARGET, entry, path)
        table = as_table(entry, path, self.faults)
        if table is None:
            return None
        shared = {k: e for k, e in table.entries.items() if k in _COMMON}
        own = {k: e for k, e in table.entries.items() if k not in _COMMON}
        place = entry.key_place or table.place
        common = read_record(
            Target, KeyedValue(place, MappingNode(shared, table.place)), path, self.faults, _TARGET
        )
        written_provider = text_of(table.get("provider"))
        if written_provider is None:
            return None
        provider = written_provider.strip().lower()
        if provider not in self.models:
            message = f"no provider is called {written_provider!r}"
            at = table.entries["provider"].place
            hint = suggest(provider, self.models)
            below = (*path, "provider")
            self.faults.add(codes.E_UNKNOWN_PROVIDER, below, at, message, hint)
            return None
        model = self.models[provider]
        owned = MappingNode(own, table.place)
        size: dict[str, Any] = {}
        if model is None:
            options = data = plain_value(owned)
        else:
            noun = f"option of a {provider} target"
            reading = RecordWords(codes.E_UNKNOWN_TARGET_OPTION, noun, _COMMON)
            read = read_record(model, KeyedValue(place, owned), path, self.faults, reading)
            if read is None:
                return None
            options = read.model_dump(mode="json")
            data = read.model_dump(mode="json", exclude_unset=True, by_alias=True)
            size = read.worker_size()
        if common is None:
            return None
        known = common.model_dump(mode="json", exclude_unset=True) | {"provider": provider}
        return CheckedTarget(provider, common, options, frozenset(data), known | data, size)

    def _managers(
        self, root: MappingNode, targets: MappingNode, components: MappingNode
    ) -> Managers:
        entry = root.get("managers")
        if entry is None or entry.is_null or is_broken(entry.node):
            return Managers()
        if not isinstance(entry.node, MappingNode):
            places = self._places(entry, ("managers",), targets, components)
            return Managers().model_copy(update={"places": places})
        own = {key: e for key, e in entry.node.entries.items() if key != "places"}
        table = KeyedValue(entry.key_place, MappingNode(own, entry.node.place))
        read = read_record(Managers, table, ("managers",), self.faults, _MANAGERS) or Managers()
        listed = entry.node.get("places")
        if listed is None or listed.is_null or is_broken(listed.node):
            return read
        found = self._places(listed, ("managers", "places"), targets, components)
        return read.model_copy(update={"places": found})

    def _places(
        self, entry: KeyedValue, at: Path, targets: MappingNode, components: MappingNode
    ) -> tuple[Manager, ...]:
        if not isinstance(entry.node, Sequence):
            message = f"{'.'.join(map(str, at))} must be a list"
            hint = "write `- target: name` lines below it"
            self.faults.add(codes.E_BAD_OPTION, at, entry.place, message, hint)
            return ()
        managers = []
        for i, item in children(entry.node):
            path: Path = (*at, i)
            if item.is_null:
                message = "a manager must name its target"
                hint = "write `- target: name`"
                self.faults.add(codes.E_BAD_OPTION, path, item.place, message, hint)
                continue
            manager = read_record(Manager, item, path, self.faults, _MANAGER)
            self._refer((item, "target"), path, targets, codes.E_BAD_OPTION, "target")
            limits = dict(children(item.node)).get("limits")
            for tag, limit in _inside(limits, MappingNode):
                if components is not _NOT_KNOWN and tag not in components.entries:
                    message = f"no component is called {tag!r}"
                    below, hint = (*path, "limits", tag), suggest(str(tag), components.entries)
                    self.faults.add(codes.E_BAD_OPTION, below, limit.key_place, message, hint)
            if manager is not None:
                managers.append(manager)
        return tuple(managers)

    def _refer(
        self, where: tuple[KeyedValue, str], path: Path, known: MappingNode, code: str, noun: str
    ) -> None:
        entry, key = where
        reference = dict(children(entry.node)).get(key)
        name = text_of(reference)
        if known is _NOT_KNOWN or reference is None or name is None:
            return
        if name not in known.entries:
            message = f"no {noun} is called {name!r}"
            hint = suggest(name, known.entries)
            self.faults.add(code, (*path, key), reference.place, message, hint)

    def _order(self, tasks: MappingNode) -> None:
        """Report tasks that wait for unknown tasks or for each other."""
        waits: dict[str, dict[str, tuple[Path, KeyedValue]]] = {}
        for name, entry in tasks.entries.items():
            after = dict(children(entry.node)).get("after")
            waits[name] = {}
            for i, item in _inside(after, Sequence):
                other = text_of(item)
                path: Path = ("tasks", name, "after", i)
                if other is None:
                    continue
                waits[name][other] = (path, item)
                if other not in tasks.entries:
                    message = f"no task is called {other!r}"
                    hint = suggest(other, tasks.entries)
                    self.faults.add(codes.E_BAD_OPTION, path, item.place, message, hint)
        for cycle in backward_edges({name: list(others) for name, others in waits.items()}):
            path, item = waits[cycle[-1]][cycle[0]]
            shown = " -> ".join((*cycle, cycle[0]))
            message = f"tasks wait for each other: {shown}"
            hint = "remove one of these names from `after`"
            self.faults.add(codes.E_BAD_OPTION, path, item.place, message, hint)


def _inside(
    entry: KeyedValue | None, kind: type[MappingNode | Sequence]
) -> list[tuple[str | int, KeyedValue]]:
    """Return the children of an entry, or none if the entry has another kind."""
    return children(entry.node) if entry and isinstance(entry.node, kind) else []


def _usable(overlay: MappingNode, targets: tuple[str, ...]) -> MappingNode:
    """Return an overlay without the parts that cannot be merged. Errors were reported before."""
    kept = {k: e for k, e in overlay.entries.items() if k in OVERLAY_SECTIONS}
    changed = kept.get("targets")
    if changed and isinstance(changed.node, MappingNode):
        inner = {k: e for k, e in changed.node.entries.items() if k in targets}
        kept["targets"] = KeyedValue(changed.key_place, MappingNode(inner, changed.node.place))
    return MappingNode(kept, overlay.place)


def overlaid(root: MappingNode, overlay: MappingNode | None) -> MappingNode:
    """Return the document with an overlay merged in."""
    merged = merge(root, overlay) if overlay is not None else root
    assert isinstance(merged, MappingNode)
    return merged


# Cycles in the order of tasks ---------------------------------------------------------------------


def backward_edges(waits: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """Return the cycle that each backward edge closes, from the edge's end to its start."""
    cycles: list[tuple[str, ...]] = []
    finished: set[str] = set()
    for start in waits:
        if start in finished:
            continue
        # An explicit stack: a chain of tasks may be longer than Python's recursion limit.
        trail = {start: None}
        stack = [(start, iter(waits[start]))]
        while stack:
            name, others = stack[-1]
            for other in others:
                if other in trail:
                    names = list(trail)
                    cycles.append(tuple(names[names.index(other) :]))
                elif other in waits and other not in finished:
                    trail[other] = None
                    stack.append((other, iter(waits[other])))
                    break
            else:
                stack.pop()
                del trail[name]
                finished.add(name)
    return cycles
