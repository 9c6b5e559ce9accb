"""Reader of YAML that returns a tree.

It handles the parser's events without recursion. Each use of an alias counts all its values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

import yaml

from scalable.manifest.faults import E_DUPLICATE_KEY, E_SYNTAX, Faults
from scalable.manifest.tree import (
    MAX_DEPTH,
    MAX_NODES,
    KeyedValue,
    MappingNode,
    Node,
    Path,
    Position,
    Scalar,
    Sequence,
    resolve_plain,
)

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})


class _UnreadableError(Exception):
    """Raised if the rest of the document cannot be read. The error was reported."""


@dataclass
class _Open:
    """A map or list that is not complete yet."""

    place: Position
    anchor: str | None
    is_map: bool
    first: int
    entries: dict[str, KeyedValue] = field(default_factory=dict)
    items: list[Node] = field(default_factory=list)
    merged: list[Node] = field(default_factory=list)
    #: Key whose value comes next; (None, place) if the key itself was rejected.
    key: tuple[str | None, Position] | None = None


def read_yaml(text: str, faults: Faults, *, quoted_is_plain: bool = False) -> Node | None:
    """Return the tree of one YAML document, or None if it is empty or cannot be read.
    With ``quoted_is_plain`` (for JSON), quoted variables get their types after expansion.
    """
    builder = _Builder(faults, quoted_is_plain=quoted_is_plain)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.YAMLError as error:
        _file_syntax_error(error, text, faults)
        return None
    except _UnreadableError:
        return None
    return builder.root


def _file_syntax_error(error: yaml.YAMLError, text: str, faults: Faults) -> None:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    position = getattr(error, "position", None)
    place = Position(1, 1)
    if mark is not None:
        place = Position(mark.line + 1, mark.column + 1)
    elif isinstance(position, int):
        before = text[:position]
        place = Position(before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    context = getattr(error, "context", None)
    line = faults.source.lines[place.line - 1] if place.line <= len(faults.source.lines) else ""
    if "${" in line and ("{" in line.replace("${", "") or "[" in line):
        hint = "inside {...} and [...] put a variable in quotes, or use one line for each value"
    elif "\t" in line[: place.column]:
        hint = "indent with spaces, not tabs"
    else:
        hint = "check indentation, colons and quotes here and on the line above"
    message = f"{problem}, {context}" if context else problem
    faults.add(E_SYNTAX, (), place, f"not valid YAML: {message}", hint)


class _Builder:
    def __init__(self, faults: Faults, *, quoted_is_plain: bool) -> None:
        self.root: Node | None = None
        self._faults = faults
        self._quoted_is_plain = quoted_is_plain
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._count = 0
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._start(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._end()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                hint = "keep one document; use overlays for variants"
                self._stop(_place(event), "the file has a second document, from here on", hint)

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        place = _place(event)
        is_plain = event.style in (None, "") and event.tag is None
        is_foreign = event.tag is not None and event.tag not in _TEXT_TAGS
        if event.tag is not None and is_foreign:
            self._refuse_tag(event.tag, place)
        value = resolve_plain(event.value) if is_plain else event.value
        node = Scalar(value, event.value, place, is_plain or self._quoted_is_plain, is_foreign)
        self._grow(1, place)
        if event.anchor:
            self._anchors[event.anchor] = (node, 1)
        self._attach(node)

    def _start(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        place = _place(event)
        if event.tag is not None:
            self._refuse_tag(event.tag, place)
        if len(self._open) >= MAX_DEPTH:
            message = f"the manifest has more than {MAX_DEPTH} levels"
            self._stop(place, message, "use fewer levels")
        is_map = isinstance(event, yaml.MappingStartEvent)
        self._open.append(_Open(place, event.anchor, is_map, self._count))
        self._grow(1, place)

    def _end(self) -> None:
        done = self._open.pop()
        node: Node
        if done.is_map:
            for source in done.merged:
                for key, entry in source.entries.items() if isinstance(source, MappingNode) else ():
                    done.entries.setdefault(key, entry)
            node = MappingNode(done.entries, done.place)
        else:
            node = Sequence(tuple(done.items), done.place)
        if done.anchor:
            self._anchors[done.anchor] = (node, self._count - done.first)
        self._attach(node)

    def _alias(self, event: yaml.AliasEvent) -> None:
        place = _place(event)
        known = self._anchors.get(event.anchor or "")
        if known is None:
            message = f"the alias *{event.anchor} has no anchor &{event.anchor} before it"
            self._stop(place, message, "define the anchor above this line and outside this value")
        self._grow(known[1], place)
        self._attach(known[0])

    def _attach(self, node: Node) -> None:
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        if not parent.is_map:
            parent.items.append(node)
        elif parent.key is None:
            parent.key = self._key(node)
        else:
            self._entry(parent, *parent.key, node)
            parent.key = None

    def _key(self, node: Node) -> tuple[str | None, Position]:
        place = node.place or Position(1, 1)
        if not isinstance(node, Scalar):
            self._fault(place, "a key must be text, not a list or a map", "write a name")
            return None, place
        if not isinstance(node.value, str):
            shown = node.written or "nothing"
            message = f"a key must be text, not {shown}"
            self._fault(place, message, f'put it in quotes: "{node.written}"')
        return node.written, place

    def _entry(self, parent: _Open, key: str | None, place: Position, node: Node) -> None:
        if key is None:
            return
        if key == "<<":
            self._merge(parent, place, node)
            return
        first = parent.entries.get(key)
        if first is None:
            parent.entries[key] = KeyedValue(place, node)
            return
        was = first.key_place.line if first.key_place else "?"
        message = f"duplicate key {key!r}; the first is on line {was}"
        self._faults.add(E_DUPLICATE_KEY, self._path(), place, message, "keep one of the two")

    def _merge(self, parent: _Open, place: Position, node: Node) -> None:
        sources = node.items if isinstance(node, Sequence) else (node,)
        if all(isinstance(source, MappingNode) for source in sources):
            parent.merged.extend(sources)
        else:
            self._fault(place, "<< takes a map or a list of maps", "write `<<: *anchor`")

    def _path(self) -> Path:
        """Return the path of the value being read, or of the map whose key is being read."""
        parts = [(o.key[0] if o.key else None) if o.is_map else len(o.items) for o in self._open]
        return tuple(part for part in parts if part is not None)

    def _grow(self, nodes: int, place: Position) -> None:
        self._count += nodes
        if self._count > MAX_NODES:
            message = f"the manifest has more than {MAX_NODES:,} values, each alias counted in full"
            self._stop(place, message, "split the manifest, or use fewer aliases")

    def _refuse_tag(self, tag: str, place: Position) -> None:
        shown = tag.replace("tag:yaml.org,2002:", "!!")
        self._fault(place, f"the tag {shown} is not supported", "remove the tag")

    def _fault(self, place: Position, message: str, hint: str) -> None:
        self._faults.add(E_SYNTAX, self._path(), place, message, hint)

    def _stop(self, place: Position, message: str, hint: str) -> NoReturn:
        self._faults.add(E_SYNTAX, (), place, message, hint)
        raise _UnreadableError


def _place(event: yaml.Event) -> Position:
    mark = event.start_mark
    assert mark is not None
    return Position(mark.line + 1, mark.column + 1)
