"""Reader of YAML that returns a tree, and writer of plain values.

The reader handles the parser's events, because ``yaml.compose`` has no limit of nesting and loses
the positions of aliases. Each use of an alias counts all its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import yaml

from scalable.manifest.document import (
    MAX_DEPTH,
    MAX_NODES,
    Node,
    Path,
    Position,
    resolve_plain,
)
from scalable.manifest.faults import E_DUPLICATE_KEY, E_SYNTAX, Faults

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT_TAGS = (None, "!", "tag:yaml.org,2002:str")


def read_yaml(text: str, faults: Faults, *, quoted_is_plain: bool = False) -> Node | None:
    """Return the tree of one YAML document, or None if it is empty or cannot be read.
    With ``quoted_is_plain`` (for JSON), quoted variables get their types after expansion.
    """
    try:
        return _Reader(text, faults, quoted_is_plain=quoted_is_plain).document()
    except yaml.YAMLError as error:
        _file_syntax_error(error, text, faults)
    except _UnreadableError:
        pass
    return None


class _UnreadableError(Exception):
    """Raised if the rest of the document cannot be read. The error was reported."""


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


class _Reader:
    def __init__(self, text: str, faults: Faults, *, quoted_is_plain: bool) -> None:
        self._events = yaml.parse(text, Loader=_LOADER)
        self._faults = faults
        self._quoted_is_plain = quoted_is_plain
        #: Each anchor's node and number of values.
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._count = 0

    def document(self) -> Node | None:
        root = None
        for event in self._events:
            if isinstance(event, yaml.NodeEvent):
                root = self._node(event, None, ())
            elif isinstance(event, yaml.DocumentStartEvent) and root is not None:
                hint = "keep one document; use overlays for variants"
                self._stop(_place(event), "the file has a second document, from here on", hint)
        return root

    def _node(self, event: yaml.Event, key: Position | None, path: Path) -> Node:
        start = _place(event)
        anchor: str | None = event.anchor  # type: ignore[attr-defined]
        if isinstance(event, yaml.AliasEvent):
            known, size = self._anchors.get(anchor or "", (None, 0))
            if known is None:
                message = f"the alias *{anchor} has no anchor &{anchor} before it"
                hint = "define the anchor above this line and outside this value"
                self._stop(start, message, hint)
            self._grow(size, start)
            return replace(known, key=key)
        before = self._count
        tag: str | None = event.tag  # type: ignore[attr-defined]
        is_scalar = isinstance(event, yaml.ScalarEvent)
        is_foreign = tag not in _TEXT_TAGS if is_scalar else tag is not None
        if is_foreign:
            shown = str(tag).replace("tag:yaml.org,2002:", "!!")
            self._faults.add(
                E_SYNTAX, path, start, f"the tag {shown} is not supported", "remove the tag"
            )
        if not is_scalar and len(path) >= MAX_DEPTH:
            message = f"the manifest has more than {MAX_DEPTH} levels"
            self._stop(start, message, "use fewer levels")
        self._grow(1, start)
        if isinstance(event, yaml.ScalarEvent):
            text: str = event.value
            is_plain = tag is None and event.style in (None, "")
            value = resolve_plain(text) if is_plain else text
            is_plain = is_plain or self._quoted_is_plain
            node = Node(value, start, key, text, is_plain, is_foreign)
        elif isinstance(event, yaml.MappingStartEvent):
            node = Node(self._entries(path), start, key)
        else:
            items: list[Node] = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                items.append(self._node(event, None, (*path, len(items))))
            node = Node(tuple(items), start, key)
        if anchor:
            self._anchors[anchor] = (node, self._count - before)
        return node

    def _entries(self, path: Path) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        sources: list[Node] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            name, place = self._key(event, path), _place(event)
            below = (*path, "?" if name is None else name)
            node = self._node(next(self._events), place, below)
            if name == "<<":
                sources += self._sources(node, below)
            elif name in entries:
                was = entries[name].key
                message = f"duplicate key {name!r}; the first is on line {was.line if was else '?'}"
                self._faults.add(E_DUPLICATE_KEY, below, place, message, "keep one of the two")
            elif name is not None:
                entries[name] = node
        for source in sources:
            for name, node in source.entries.items():
                entries.setdefault(name, node)
        return entries

    def _key(self, event: yaml.Event, path: Path) -> str | None:
        """Read a key. Return None for a list or a map."""
        key = self._node(event, None, path if isinstance(event, yaml.ScalarEvent) else (*path, "?"))
        place = _place(event)
        if not key.is_scalar:
            message = "a key must be a string, not a list or a map"
            self._faults.add(E_SYNTAX, path, place, message, "write a name")
            return None
        if not isinstance(key.value, str):
            message = f"a key must be a string, not {key.written or 'nothing'}"
            self._faults.add(E_SYNTAX, path, place, message, f'put it in quotes: "{key.written}"')
        return key.written

    def _sources(self, node: Node, path: Path) -> tuple[Node, ...]:
        sources = (node,) if node.is_scalar or node.entries else node.items
        if all(isinstance(source.value, dict) for source in sources):
            return sources
        message = "<< takes a map or a list of maps"
        self._faults.add(E_SYNTAX, path, node.key or Position(1, 1), message, "write `<<: *anchor`")
        return ()

    def _grow(self, nodes: int, place: Position) -> None:
        self._count += nodes
        if self._count > MAX_NODES:
            message = f"the manifest has more than {MAX_NODES:,} values, each alias counted in full"
            self._stop(place, message, "split the manifest, or use fewer aliases")

    def _stop(self, place: Position, message: str, hint: str) -> NoReturn:
        self._faults.add(E_SYNTAX, (), place, message, hint)
        raise _UnreadableError


def _place(event: yaml.Event) -> Position:
    mark = event.start_mark
    assert mark is not None
    return Position(mark.line + 1, mark.column + 1)


# Writer -------------------------------------------------------------------------------------------


def to_yaml(data: Mapping[str, Any]) -> str:
    """Return a manifest as YAML with ``${`` in strings escaped."""
    return yaml.dump(_escaped(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value


class _Dumper(yaml.SafeDumper):
    """YAML writer that quotes strings which YAML 1.1 or 1.2 would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True

    def text(self, data: str) -> yaml.ScalarNode:
        style = None if isinstance(resolve_plain(data), str) and data != "<<" else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.text)
