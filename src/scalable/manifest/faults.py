"""Errors in a document, each with its position and a hint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from scalable.errors import ManifestError
from scalable.manifest.document import Path, Position
from scalable.model import Diagnostic

E_BAD_MAX_WORKERS = "E_BAD_MAX_WORKERS"  #: ``max_workers`` is not valid.
E_BAD_OPTION = "E_BAD_OPTION"  #: A value is not valid.
E_BAD_VERSION = "E_BAD_VERSION"  #: ``version`` is not supported.
E_DUPLICATE_KEY = "E_DUPLICATE_KEY"  #: A key appears twice.
E_MISSING_KEY = "E_MISSING_KEY"  #: A key is missing.
E_SYNTAX = "E_SYNTAX"  #: The file is not valid YAML or TOML.
E_TASK_COMPONENT_REF = "E_TASK_COMPONENT_REF"  #: A task's component does not exist.
E_UNKNOWN_COMPONENT_KEY = "E_UNKNOWN_COMPONENT_KEY"  #: A component has no such key.
E_UNKNOWN_OVERLAY = "E_UNKNOWN_OVERLAY"  #: The overlay does not exist.
E_UNKNOWN_PROVIDER = "E_UNKNOWN_PROVIDER"  #: The provider does not exist.
E_UNKNOWN_TARGET = "E_UNKNOWN_TARGET"  #: The target does not exist.
E_UNKNOWN_TARGET_OPTION = "E_UNKNOWN_TARGET_OPTION"  #: A provider has no such option.
E_UNKNOWN_TOP_KEY = "E_UNKNOWN_TOP_KEY"  #: No such key at the top level.
E_UNREADABLE = "E_UNREADABLE"  #: The file cannot be read.

_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_EXCERPT_WIDTH = 120
_SUGGESTIONS = 12


@dataclass(frozen=True)
class SourceLines:
    """Lines of a file, for showing positions."""

    #: Name of the file as the user wrote it, or None if the manifest is not a file.
    file: str | None = None
    lines: tuple[str, ...] = ()

    @classmethod
    def of(cls, file: str, text: str) -> SourceLines:
        """Split a file into lines by the rules of YAML and TOML."""
        return cls(file, tuple(_LINE_BREAK.split(text)))

    def excerpt(self, place: Position) -> str | None:
        """Return the line at a position, with a caret beneath it."""
        if not 1 <= place.line <= len(self.lines):
            return None
        line = self.lines[place.line - 1].replace("\t", " ")
        column = min(place.column, len(line) + 1)
        first = max(0, column - _EXCERPT_WIDTH // 2) if len(line) > _EXCERPT_WIDTH else 0
        return f"{line[first : first + _EXCERPT_WIDTH]}\n{' ' * (column - 1 - first)}^"

    def locate(self, diagnostic: Diagnostic, place: Position | None) -> Diagnostic:
        """Return a finding with a position in this file."""
        line, column = place or (None, None)
        excerpt = self.excerpt(place) if place else None
        return replace(diagnostic, file=self.file, line=line, column=column, excerpt=excerpt)


@dataclass
class Faults:
    """Errors found so far, without duplicates."""

    source: SourceLines
    _found: dict[tuple[object, ...], Diagnostic] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(
        self,
        code: str,
        path: Path,
        place: Position | None,
        message: str,
        hint: str | None = None,
        *,
        secret: bool = False,
    ) -> None:
        found = self.source.locate(Diagnostic(code, path, message, hint), place)
        found = replace(found, excerpt=None) if secret else found
        self._found.setdefault((code, path, place, message), found)

    def __iter__(self) -> Iterator[Diagnostic]:
        return iter(self._found.values())


def in_order(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Sort findings by their position in the file."""
    return sorted(diagnostics, key=lambda d: (d.line or 0, d.column or 0))


def failure(source: SourceLines, diagnostics: Iterable[Diagnostic]) -> ManifestError:
    """Return the exception for these findings."""
    found = in_order(diagnostics)
    count = sum(d.severity == "error" for d in found)
    name = source.file or "the manifest"
    return ManifestError(f"{name} has {count} error{'' if count == 1 else 's'}", diagnostics=found)


#: Maps names in other tools to our names.
_ELSEWHERE = {
    **dict.fromkeys(("cores", "ncpus", "threads", "vcpus"), "cpus"),
    "ram": "memory",
    **dict.fromkeys(("count", "instances", "nodes", "replicas"), "workers"),
}


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: scalable's name for it, the closest one, or all names."""
    import difflib

    names = list(dict.fromkeys(known))
    if (ours := _ELSEWHERE.get(word.lower())) in names:
        return f"did you mean {ours!r}?"
    folded = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), folded, n=1)
    if close:
        return f"did you mean {folded[close[0]]!r}?"
    if not names:
        return "none is defined"
    shown = ", ".join(names[:_SUGGESTIONS])
    return f"known: {shown}" + (", ..." if len(names) > _SUGGESTIONS else "")
