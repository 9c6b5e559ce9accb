"""Errors and warnings of a request, with their positions in the manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Diagnostic:
    """One error or warning."""

    #: Stable name of the kind, such as ``E_BAD_OPTION``.
    code: str
    #: Keys and list positions from the top, such as ``("targets", "local", "max_workers")``.
    path: tuple[str | int, ...]
    message: str
    #: Advice on what to write instead.
    hint: str | None = None
    severity: Severity = "error"
    file: str | None = None
    #: Line number from 1 on, or None until positions are known.
    line: int | None = None
    column: int | None = None
    #: The source line with a caret beneath the position.
    excerpt: str | None = None

    @property
    def dotted_path(self) -> str:
        """The path as a string: ``targets.local.max_workers``, ``tasks.run.after[0]``."""
        text = ""
        for part in self.path:
            text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
        return text

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "path": self.dotted_path,
            "message": self.message,
            "hint": self.hint,
            "file": self.file,
            "line": self.line,
            "column": self.column,
        }

    def render(self) -> str:
        """Return the position, severity, message, excerpt and hint, for users."""
        place = ":".join(str(p) for p in (self.file, self.line, self.column) if p is not None)
        head = f"{place}: " if place else ""
        where = f" [{self.dotted_path}]" if self.path else ""
        lines = [f"{head}{self.severity} {self.code}: {self.message}{where}"]
        if self.excerpt:
            lines += [f"    {line}" for line in self.excerpt.splitlines()]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


@dataclass
class ValidationReport:
    """The findings of a check.

    An empty report, ``ValidationReport()``, is ``ok``.
    """

    errors: list[Diagnostic] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if there are no errors. Warnings do not count."""
        return not self.errors

    def add(self, diagnostic: Diagnostic) -> None:
        """Add one finding to the list of its severity."""
        (self.errors if diagnostic.severity == "error" else self.warnings).append(diagnostic)

    def extend(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Add several findings."""
        for diagnostic in diagnostics:
            self.add(diagnostic)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain JSON values."""
        return {
            "errors": [d.to_dict() for d in self.errors],
            "warnings": [d.to_dict() for d in self.warnings],
        }
