"""Checks of a whole document: its records, and the references between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from scalable.manifest import faults as codes
from scalable.manifest.document import Node, Path, Position
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
_NOT_KNOWN = Node({})


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
    """Valid parts of a document, and the document itself for positions."""

    root: Node
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

    def document(self, root: Node) -> dict[str | None, Checked]:
        """Check a document. Return its valid parts, with each overlay (by name) and with none."""
        views: dict[str | None, Node] = {None: root}
        targets = self._table(root, "targets").entries.keys()
        for name, node in self._table(root, "overlays").entries.items():
            table = as_table(node, ("overlays", name), self.faults)
            if table is not None:
                views[name] = root.merged(self._overlay(table, ("overlays", name), targets))
        return {name: self._view(view) for name, view in views.items()}

    def _view(self, root: Node) -> Checked:
        for key, node in root.entries.items():
            if key not in SECTIONS:
                self._unknown_key(f"{key!r} at the top of the manifest", SECTIONS, node, (key,))
        self._required(root)
        overlays = self._table(root, "overlays")
        targets = self._table(root, "targets")
        components = self._table(root, "components")
        tasks = self._table(root, "tasks")
        checked = Checked(
            root=root,
            project=self._project(root),
            targets=self._each(targets, "targets", names.TARGET, self._target),
            components=self._each(components, "components", names.TAG, self._component),
            tasks=self._each(tasks, "tasks", names.TASK, self._task),
            managers=self._managers(root, targets, components),
        )
        for name, node in targets.entries.items():
            path: Path = ("targets", name, "overlay")
            self._refer(node.at("overlay"), path, overlays, codes.E_UNKNOWN_OVERLAY)
        for name, node in tasks.entries.items():
            path = ("tasks", name, "component")
            self._refer(node.at("component"), path, components, codes.E_TASK_COMPONENT_REF)
        self._order(tasks)
        return checked

    def _overlay(self, table: Node, path: Path, known: Iterable[str]) -> Node:
        """Report an overlay's errors, and return its parts that can be merged."""
        kept = {}
        for key, node in table.entries.items():
            if key in OVERLAY_SECTIONS:
                kept[key] = node
            else:
                self._unknown_key(f"{key!r} in an overlay", OVERLAY_SECTIONS, node, (*path, key))
        targets = kept.get("targets")
        for name, node in targets.entries.items() if targets else ():
            below = (*path, "targets", name)
            if name not in known:
                message = f"an overlay changes existing targets, and no target is called {name!r}"
                self._bad(message, suggest(name, known), below, node.key)
            inner = node.at("overlay")
            if inner:
                message = "an overlay cannot name another overlay"
                hint = "name it in the target itself"
                self._bad(message, hint, (*below, "overlay"), inner.place)
        if targets and isinstance(targets.value, dict):
            existing = {name: node for name, node in targets.entries.items() if name in known}
            kept["targets"] = replace(targets, value=existing)
        return replace(table, value=kept)

    def _required(self, root: Node) -> None:
        for key in REQUIRED_SECTIONS:
            node = root.at(key)
            may_be_empty = key not in ("targets", "components")
            if node is None or node.is_null or (node.value == {} and not may_be_empty):
                message = f"{key} is missing" if node is None else f"{key} is empty"
                place = root.start if node is None else node.place
                hint = f"add `{key}:` - {SECTIONS[key]}"
                self.faults.add(codes.E_MISSING_KEY, (key,), place, message, hint)
        version = root.at("version")
        if version and not version.is_null and not version.broken:
            value = version.value if version.is_scalar else None
            if type(value) is not int or value != 1:
                message = f"version must be 1, not {json.dumps(value)}"
                hint = "write `version: 1`, without quotes"
                self.faults.add(codes.E_BAD_VERSION, ("version",), version.place, message, hint)

    def _table(self, root: Node, key: str) -> Node:
        node = root.at(key)
        if node is None:
            return Node({})
        table = as_table(node, (key,), self.faults)
        return _NOT_KNOWN if table is None else table

    def _each(
        self, table: Node, section: str, rule: Rule, check: Callable[[Node, Path], Result | None]
    ) -> dict[str, Result]:
        results = {}
        for name, node in table.entries.items():
            path: Path = (section, name)
            done = self._done.get((path, id(node)))
            if done is None:
                fault = rule.fault(name)
                if fault is not None:
                    self._bad(fault, rule.hint, path, node.key)
                done = self._done[path, id(node)] = (node, check(node, path))
            if done[1] is not None:
                results[name] = done[1]
        return results

    def _project(self, root: Node) -> Project | None:
        node = root.at("project")
        if node is None or node.is_null:
            return None
        return read_record(Project, node, ("project",), self.faults, _PROJECT)

    def _component(self, node: Node, path: Path) -> Component | None:
        return read_record(Component, node, path, self.faults, _COMPONENT)

    def _task(self, node: Node, path: Path) -> Task | None:
        return read_record(Task, node, path, self.faults, _TASK)

    def _target(self, node: Node, path: Path) -> CheckedTarget | None:
        table = as_table(node, path, self.faults)
        if table is None:
            return None
        shared = {key: child for key, child in table.entries.items() if key in _COMMON}
        own = {key: child for key, child in table.entries.items() if key not in _COMMON}
        common = read_record(Target, replace(table, value=shared), path, self.faults, _TARGET)
        named = table.at("provider")
        written = named.text if named else None
        if named is None or written is None:
            return None
        provider = written.strip().lower()
        if provider not in self.models:
            code, below = codes.E_UNKNOWN_PROVIDER, (*path, "provider")
            self._unknown("provider", written, self.models, below, named.place, code)
            return None
        model = self.models[provider]
        owned = replace(table, value=own)
        size: dict[str, Any] = {}
        if model is None:
            options = data = owned.plain_value()
        else:
            noun = f"option of a {provider} target"
            words = RecordWords(codes.E_UNKNOWN_TARGET_OPTION, noun, _COMMON)
            read = read_record(model, owned, path, self.faults, words)
            if read is None:
                return None
            options = read.model_dump(mode="json")
            data = read.model_dump(mode="json", exclude_unset=True, by_alias=True)
            size = read.worker_size()
        if common is None:
            return None
        known = common.model_dump(mode="json", exclude_unset=True) | {"provider": provider}
        return CheckedTarget(provider, common, options, frozenset(data), known | data, size)

    def _managers(self, root: Node, targets: Node, components: Node) -> Managers:
        node = root.at("managers")
        path: Path = ("managers",)
        managers, listed = Managers.model_construct(), node  # builds no validator
        if node is not None and isinstance(node.value, dict):
            own = {key: child for key, child in node.entries.items() if key != "places"}
            table = replace(node, value=own)
            managers = read_record(Managers, table, path, self.faults, _MANAGERS) or managers
            path, listed = ("managers", "places"), node.at("places")
        if listed is None or listed.is_null or listed.broken:
            return managers
        places = self._places(listed, path, targets, components)
        return managers.model_copy(update={"places": places})

    def _places(
        self, listed: Node, at: Path, targets: Node, components: Node
    ) -> tuple[Manager, ...]:
        if not isinstance(listed.value, tuple):
            message = f"{'.'.join(map(str, at))} must be a list"
            self._bad(message, "write `- target: name` lines below it", at, listed.place)
        managers = []
        for i, item in enumerate(listed.items):
            path: Path = (*at, i)
            managers.append(read_record(Manager, item, path, self.faults, _MANAGER))
            self._refer(item.at("target"), (*path, "target"), targets)
            limits = item.at("limits")
            for tag, limit in limits.entries.items() if limits else ():
                if components is not _NOT_KNOWN and tag not in components.entries:
                    below = (*path, "limits", tag)
                    self._unknown("component", tag, components.entries, below, limit.key)
        return tuple(manager for manager in managers if manager is not None)

    def _refer(
        self, node: Node | None, path: Path, known: Node, code: str = codes.E_BAD_OPTION
    ) -> None:
        """Report a reference to a name that does not exist. The key is what is referred to."""
        if node is None or node.text is None or known is _NOT_KNOWN:
            return
        if node.text not in known.entries:
            self._unknown(str(path[-1]), node.text, known.entries, path, node.place, code)

    def _order(self, tasks: Node) -> None:
        """Report tasks that wait for unknown tasks or for each other."""
        waits: dict[str, dict[str, tuple[Path, Node]]] = {}
        for name, node in tasks.entries.items():
            waits[name] = {}
            after = node.at("after")
            for i, item in enumerate(after.items if after else ()):
                path: Path = ("tasks", name, "after", i)
                if item.text is not None:
                    waits[name][item.text] = (path, item)
                    if item.text not in tasks.entries:
                        self._unknown("task", item.text, tasks.entries, path, item.place)
        for cycle in backward_edges(waits):
            path, item = waits[cycle[-1]][cycle[0]]
            message = f"tasks wait for each other: {' -> '.join((*cycle, cycle[0]))}"
            self._bad(message, "remove one of these names from `after`", path, item.place)

    def _unknown(
        self,
        noun: str,
        name: str,
        known: Iterable[str],
        path: Path,
        place: Position | None,
        code: str = codes.E_BAD_OPTION,
    ) -> None:
        message = f"no {noun} is called {name!r}"
        self.faults.add(code, path, place, message, suggest(name, known))

    def _unknown_key(self, shown: str, known: Iterable[str], node: Node, path: Path) -> None:
        hint = suggest(str(path[-1]), known)
        self.faults.add(codes.E_UNKNOWN_TOP_KEY, path, node.key, f"unknown key {shown}", hint)

    def _bad(self, message: str, hint: str, path: Path, place: Position | None) -> None:
        self.faults.add(codes.E_BAD_OPTION, path, place, message, hint)


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
