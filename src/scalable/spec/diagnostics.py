"""What is wrong with a request, and where it was written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Diagnostic:
    """One fault.

    Attributes
    ----------
    code
        Stable name of the kind of fault, such as ``E_BAD_OPTION``.
    path
        Where in the manifest: keys and list positions from the top, such as
        ``("targets", "local", "max_workers")``.
    message
        What is wrong.
    hint
        What to write instead.
    severity
        An error stops the work, a warning does not.
    file, line, column
        Where it was written, counted from 1; None until the manifest's positions are known.
    excerpt
        The source line with a caret beneath the place.
    """

    code: str
    path: tuple[str | int, ...]
    message: str
    hint: str | None = None
    severity: Severity = "error"
    file: str | None = None
    line: int | None = None
    column: int | None = None
    excerpt: str | None = None

    @property
    def dotted_path(self) -> str:
        """The path as text: ``targets.local.max_workers``, ``tasks.run.after[0]``."""
        text = ""
        for part in self.path:
            text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
        return text

    def to_dict(self) -> dict[str, Any]:
        """The public fields as plain JSON values."""
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
        """Text for people: place, severity, message, excerpt and hint."""
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
    """Everything that a check found.

    ``ValidationReport()`` is an empty one, which is ``ok``.
    """

    errors: list[Diagnostic] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True without errors; warnings do not count."""
        return not self.errors

    def add(self, diagnostic: Diagnostic) -> None:
        """File one finding under its severity."""
        (self.errors if diagnostic.severity == "error" else self.warnings).append(diagnostic)

    def extend(self, diagnostics: Iterable[Diagnostic]) -> None:
        """File several findings."""
        for diagnostic in diagnostics:
            self.add(diagnostic)

    def to_dict(self) -> dict[str, Any]:
        """The findings as plain JSON values."""
        return {
            "errors": [d.to_dict() for d in self.errors],
            "warnings": [d.to_dict() for d in self.warnings],
        }
