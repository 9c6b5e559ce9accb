"""Expansion of ``${NAME}`` and ``${NAME:-default}`` in values.
Keys are not expanded, nor is ``$NAME`` without braces. ``$${NAME}`` is a literal ``${NAME}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scalable.manifest.tree import Entry, Node, Path, Place, Scalar, Sequence, Table, resolve_plain

_VARIABLE = re.compile(r"\$(\$\{)|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\})?")
_HOW = "write ${NAME} or ${NAME:-default}; $${...} is not expanded"

#: Arguments: path, position, message, hint, and True for a variable that is not set.
Report = Callable[[Path, Place | None, str, str, bool], None]


@dataclass(frozen=True)
class _Expansion:
    environ: Mapping[str, str]
    report: Report

    def node(self, node: Node, path: Path) -> Node:
        if isinstance(node, Scalar):
            return self._scalar(node, path) if "${" in node.written else node
        if isinstance(node, Sequence):
            items = tuple(self.node(item, (*path, i)) for i, item in enumerate(node.items))
            unchanged = all(new is old for new, old in zip(items, node.items, strict=True))
            return node if unchanged else Sequence(items, node.place)
        changed = {}
        for key, entry in node.entries.items():
            new = self.node(entry.node, (*path, key))
            if new is not entry.node:
                changed[key] = Entry(entry.key_place, new)
        return Table({**node.entries, **changed}, node.place) if changed else node

    def _scalar(self, node: Scalar, path: Path) -> Scalar:
        failed = False

        def replace(match: re.Match[str]) -> str:
            nonlocal failed
            escaped, name, default = match.groups()
            if escaped:
                return "${"
            value = self.environ.get(name) if name else None
            if name and (value or (value is not None and default is None)):
                if _is_text(value or ""):
                    return value or ""
                message = f"the environment variable {name} is not valid text"
                self.report(path, node.place, message, "set it to UTF-8 text", False)
            elif default is not None:
                return default
            elif name:
                message = f"the environment variable {name} is not set"
                hint = f"set {name}, or give a default: ${{{name}:-...}}"
                self.report(path, node.place, message, hint, True)
            else:
                shown = node.written[match.start() : match.start() + 40].split("\n")[0]
                self.report(path, node.place, f"{shown!r} is not a variable", _HOW, False)
            failed = True
            return ""

        whole = _VARIABLE.fullmatch(node.written)
        text = _VARIABLE.sub(replace, node.written)
        if failed:
            return Scalar(None, node.written, node.place, broken=True)
        retyped = node.plain and whole is not None and whole.group(2) is not None
        return Scalar(resolve_plain(text) if retyped else text, text, node.place, node.plain)


def _is_text(value: str) -> bool:
    """Return False for a variable of the environment that is not UTF-8."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def expand(node: Node, environ: Mapping[str, str], report: Report) -> Node:
    """Replace the variables in a tree by their values.
    Failed scalars become broken. Each unset variable, and each invalid ``${``, is reported.
    """
    return _Expansion(environ, report).node(node, ())
