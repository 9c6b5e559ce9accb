"""Raw task graphs: checks, selection of the needed nodes, and unique keys.

A raw graph maps the names of its nodes to ``(func, arg, ...)``, to values, or to other names. Names
within arguments have the same meaning as for ``dask.get``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import Alias, DataNode, GraphNode, List, Task, TaskRef
from dask.utils import funcname, is_namedtuple_instance

from scalable.errors import ClusterError
from scalable.harmless import is_sendable
from scalable.protocol.synchronous import in_place

#: Longest string, in characters, that is copied into each task that takes the string. A longer one
#: becomes a node of its own.
SHORT: Final = 1000
LISTED_NAMES: Final = 10

_NAMES = (str, bytes, int, float, tuple)
_NUMBERS = (bool, int, float, complex, type(None))
_CONTAINERS = (list, tuple, set, frozenset)

Graph = Mapping[Any, Any]
Tags = Mapping[Any, str | None]


@dataclass(frozen=True)
class PreparedGraph:
    """The nodes to run, under keys that are unique to this graph."""

    #: The requested names replaced by their keys, with the same nesting.
    keys: Any
    #: Nodes by tag and key. Any worker may run the nodes of the tag None.
    nodes: Mapping[str | None, Mapping[str, GraphNode]]
    #: Key by node name, for the nodes that are run.
    key_of: Mapping[Any, str]

    def annotated(self, annotations: Mapping[str | None, dict[str, Any]]) -> HighLevelGraph:
        """Return the graph for Dask. Each node gets the annotations of its tag."""
        layers = {
            f"tag {tag}" if tag is not None else "no tag": MaterializedLayer(
                nodes, annotations=annotations[tag]
            )
            for tag, nodes in self.nodes.items()
        }
        # Layers are not stages: nodes of two tags may depend on each other in both directions.
        return HighLevelGraph(layers, dependencies={name: set() for name in layers})

    def actors(self, actors: Any) -> Any:
        """Return Dask's ``actors`` argument with names replaced by keys. Keep None and bools."""
        if actors is None or isinstance(actors, bool):
            return actors
        names = [n for n in actors if actors[n]] if isinstance(actors, Mapping) else list(actors)
        for name in names:
            _refuse_unknown(name, self.key_of, "actors=")
        return tuple(self.key_of[name] for name in names)


def is_raw(graph: Any) -> bool:
    """Return whether a graph is a plain dict of raw nodes, rather than a Dask graph."""
    return isinstance(graph, dict) and not any(_has_dask_node(node) for node in graph.values())


def prepare(
    graph: Graph, keys: Any, tag: str | None = None, tags: Tags | None = None
) -> PreparedGraph:
    """Check a raw graph, and return the nodes that have to be run.
    ``tags`` overrides ``tag`` for single nodes. Raises ClusterError for cycles and invalid names.
    """
    tags = tags or {}
    _has_dask_node(keys)
    asked = list(_flat(keys))
    _check_names(graph, asked, tags)
    needs = {name: tuple(_names_in(node, graph)) for name, node in graph.items()}
    _refuse_cycles(needs)
    target = {name: _target_of(name, graph) for name in graph}
    takes = {name: [target[other] for other in needs[name]] for name in graph}
    wanted = {target[name]: None for name in asked}
    run = [n for n in _needed(wanted, takes) if n in wanted or not _is_short(graph[n])]
    token = uuid.uuid4().hex
    keys_run = {name: f"{_label(graph[name])}-{token}.{i}-{name}" for i, name in enumerate(run)}
    key_of = {name: keys_run[other] for name, other in target.items() if other in keys_run}
    stands = {
        name: graph[other] if _is_short(graph[other]) else TaskRef(keys_run[other])
        for name, other in target.items()
        if other in keys_run or _is_short(graph[other])
    }
    tag_of = _tags_of(graph, run, takes, tag, tags)
    nodes: dict[str | None, dict[str, GraphNode]] = {}
    for name, key in keys_run.items():
        nodes.setdefault(tag_of[name], {})[key] = _node(name, key, graph[name], stands)
    return PreparedGraph(_shaped(keys, key_of), nodes, key_of)


# Kinds of values ----------------------------------------------------------------------------------


def _is_name(value: Any, names: Any) -> bool:
    if not isinstance(value, _NAMES) or _is_call(value):
        return False
    try:
        return value in names
    except TypeError:  # a tuple with an unhashable element
        return False


def _is_call(value: Any) -> bool:
    return type(value) is tuple and bool(value) and callable(value[0])


def _is_short(value: Any) -> bool:
    """Return whether a value is copied into the tasks that take it rather than stored as a node."""
    return type(value) in _NUMBERS or (type(value) in (str, bytes) and len(value) <= SHORT)


def _has_dask_node(value: Any) -> bool:
    """Return whether a value is or contains a Dask node. Raises ClusterError for a cycle."""
    rest, around, seen = [(value, False)], set(), set()
    while rest:
        part, is_left = rest.pop()
        if isinstance(part, GraphNode):
            return True
        if not isinstance(part, list | tuple):
            continue
        if is_left:
            around.discard(id(part))
        elif id(part) in around:
            raise ClusterError("a list of the graph or of its keys contains itself")
        elif id(part) not in seen:
            seen.add(id(part))
            around.add(id(part))
            rest.append((part, True))
            rest.extend((each, False) for each in part)
    return False


def _label(node: Any) -> str:
    """Return the name of a node for the records: its function, or the type of its value."""
    return str(funcname(node[0])) if _is_call(node) else type(node).__name__


def _flat(keys: Any) -> Iterator[Any]:
    if isinstance(keys, list):
        for key in keys:
            yield from _flat(key)
    else:
        yield keys


def _shaped(keys: Any, key_of: Mapping[Any, str]) -> Any:
    return [_shaped(key, key_of) for key in keys] if isinstance(keys, list) else key_of[keys]


def _names_in(value: Any, names: Any) -> Iterator[Any]:
    rest = [value]
    while rest:
        part = rest.pop()
        if _is_name(part, names):
            yield part
        elif isinstance(part, _CONTAINERS):
            rest.extend(reversed(part[1:] if _is_call(part) else list(part)))  # type: ignore[index]


def _is_bare(value: Any, names: Any) -> bool:
    """Return whether a value contains no name or node to replace."""
    rest = [value]
    while rest:
        part = rest.pop()
        if _is_name(part, names) or _is_call(part) or isinstance(part, GraphNode | TaskRef):
            return False
        if isinstance(part, _CONTAINERS):
            rest.extend(part)
        elif type(part) is dict:
            rest.extend(part.items())
    return True


def _target_of(name: Any, graph: Graph) -> Any:
    """Follow a chain of names, and return the name of the task or value at its end."""
    while _is_name(graph[name], graph):
        name = graph[name]
    return name


# Checks -------------------------------------------------------------------------------------------


def _check_names(graph: Graph, asked: list[Any], tags: Tags) -> None:
    for name in graph:
        if not isinstance(name, _NAMES) or not is_sendable(name):
            raise ClusterError(
                f"the graph has a node named {name!r}",
                hint="a name must be a UTF-8 string, a number or a tuple",
            )
    seen = set()
    for name in asked:
        _refuse_unknown(name, graph, "keys")
        if name in seen:
            raise ClusterError(f"node {name!r} occurs twice in keys", hint="give each name once")
        seen.add(name)
    for name in tags:
        _refuse_unknown(name, graph, "tags=")


def _refuse_unknown(name: Any, names: Iterable[Any], place: str) -> None:
    if _is_name(name, names):
        return
    known = [repr(n) for n in names]
    more = f" and {len(known) - LISTED_NAMES} more" if len(known) > LISTED_NAMES else ""
    hint = f"its nodes: {', '.join(known[:LISTED_NAMES])}{more}" if known else "it is empty"
    if isinstance(name, Iterable) and not isinstance(name, str | bytes):
        hint += "; several names are given as a list"
    raise ClusterError(f"the graph has no node {name!r}, given in {place}", hint=hint)


def _refuse_cycles(needs: Mapping[Any, Iterable[Any]]) -> None:
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        raise ClusterError(
            f"the graph has a cycle: {' -> '.join(map(str, reversed(error.args[1])))}",
            hint="a node must not need its own result; a string that equals a node's name "
            "stands for that node",
        ) from None


# Nodes --------------------------------------------------------------------------------------------


def _needed(wanted: Iterable[Any], takes: Mapping[Any, Iterable[Any]]) -> list[Any]:
    found = dict.fromkeys(wanted)
    rest = list(found)
    while rest:
        for other in takes[rest.pop()]:
            if other not in found:
                found[other] = None
                rest.append(other)
    return list(found)


def _tags_of(
    graph: Graph, run: list[Any], takes: Mapping[Any, Iterable[Any]], tag: str | None, tags: Tags
) -> dict[Any, str | None]:
    """Return the tag of each node. A value without a tag gets the tag of a node that takes it."""
    tag_of = {name: tags.get(name, tag) for name in run}
    for name in run:
        for other in takes[name]:
            free = other in tag_of and tag_of[other] is None and other not in tags
            if free and not _is_call(graph[other]):
                tag_of[other] = tag_of[name]
    return tag_of


def _node(name: Any, key: str, raw: Any, stands: Mapping[Any, Any]) -> GraphNode:
    try:
        bound = raw if _is_bare(raw, stands) else _bound(raw, stands)
    except RecursionError as error:
        raise ClusterError(
            f"node {name!r} of the graph is nested too deeply",
            hint="turn its inner calls and lists into nodes",
        ) from error
    if isinstance(bound, TaskRef):
        return Alias(key, bound.key)
    if isinstance(bound, GraphNode):
        bound.key = key
        return bound
    return DataNode(key, bound)


def _bound(value: Any, stands: Mapping[Any, Any] | None) -> Any:
    """Return a value with its names replaced, or a Dask node that replaces them on a worker."""
    if stands is not None and _is_call(value):
        # Most arguments need no copy, and may be nested more deeply than calls may be.
        parts = (p if _is_bare(p, stands) else _bound(p, stands) for p in value[1:])
        return Task(None, in_place(value[0]), *parts)
    if stands is not None and _is_name(value, stands):
        return stands[value]
    if isinstance(value, TaskRef):
        return TaskRef(value.key)  # a reference that does not keep the future's client
    # Without ``stands``, names and nested calls in a dict stay unchanged.
    if type(value) is dict:
        items = _bound(list(value.items()), None)
        return Task(None, dict, items) if isinstance(items, GraphNode) else value
    if isinstance(value, _CONTAINERS):
        value = _gathered(value, [_bound(part, stands) for part in value])
    return value


def _gathered(value: Any, parts: list[Any]) -> Any:
    """Return a container like ``value`` with the given parts."""
    if all(ours is theirs for ours, theirs in zip(parts, value, strict=True)):
        return value
    make = type(value)._make if is_namedtuple_instance(value) else type(value)
    if any(isinstance(part, GraphNode | TaskRef) for part in parts):
        return List(*parts) if make is list else Task(None, make, List(*parts))
    return make(parts)
