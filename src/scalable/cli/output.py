"""Output of the commands, in three forms. Only this module prints."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalable.harmless import harmless
from scalable.model import Diagnostic

if TYPE_CHECKING:
    from scalable.session.progress import Display

FORMS = ("human", "json", "quiet")
#: Version of the JSON values; it rises when a key is removed or changes its meaning.
VERSION = 1

_STDERR = 2


@dataclass(frozen=True)
class Result:
    """Result of a command."""

    #: Whole lines for users, or nothing.
    text: str
    #: JSON value for programs, without its version.
    data: Mapping[str, Any]
    #: Content of a JSON file, if it differs from ``data``.
    document: Mapping[str, Any] | None = None
    #: Files that are written next to a JSON file, by name.
    companions: Mapping[str, str] = field(default_factory=dict)
    #: True if the result reports errors, which quiet form shows too.
    faulty: bool = False
    #: Files that are written to a directory instead of one file, by name.
    files: Mapping[str, str] = field(default_factory=dict)
    exit_code: int = 0
    #: False if ``data`` is the value of a standard format.
    versioned: bool = True

    @property
    def value(self) -> Mapping[str, Any]:
        """The JSON value as it is printed."""
        return {"version": VERSION, **self.data} if self.versioned else self.data


@dataclass(frozen=True)
class CommandFailure:
    """Reason why a command failed."""

    #: Stable name of the kind of failure.
    code: str
    message: str
    exit_code: int
    hint: str | None = None
    #: Errors of a manifest.
    diagnostics: Sequence[Diagnostic] = ()
    #: Traceback, if requested.
    trace: str | None = None


class Output:
    """Output of a command: text for people, one JSON value or only errors.
    Results go to standard output, or to a file that contains strings unchanged, with the control
    characters of logs. Everything else goes to standard error. Text is harmless to a terminal, even
    in a pipe, because a pipe often ends in one.
    """

    def __init__(self, form: str | None = None, destination: Path | None = None) -> None:
        self._form = form if form in FORMS else "human"
        self._file = None if str(destination or "-") == "-" else destination
        suffix = "" if self._file is None else self._file.suffix.lower()
        self._as_json = form == "json" or (form in (None, "quiet") and suffix == ".json")
        self._begun = False
        #: Descriptor for what a workflow prints, if it is not standard output.
        self.script_stdout = _STDERR if form == "json" else None

    def show(self, result: Result) -> None:
        """Show a result, or write it to the file."""
        if self._file is not None:
            self._write_files(self._file, result)
        elif self._form == "json":
            _write(to_json(result.value))
        elif self._form == "human" or result.faulty:
            _echo(result.text, err=self._form == "quiet")

    def _write_files(self, path: Path, result: Result) -> None:
        files = {path: result.text}
        if self._as_json:
            files = {path: to_json(result.value if result.document is None else result.document)}
            files |= {path.with_name(name): text for name, text in result.companions.items()}
        elif result.files:
            files = {path / name: text for name, text in result.files.items()}
            with naming(path):
                path.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            write_file(file, text)
        self.note(f"wrote {', '.join(map(str, files))}")

    def fail(self, failure: CommandFailure) -> None:
        """Show a failure. The file stays as it is."""
        if self._form != "json":
            _write(render_failure(failure), err=True)
            return
        error = {name: getattr(failure, name) for name in ("code", "message", "hint", "exit_code")}
        if failure.diagnostics:
            error["diagnostics"] = [diagnostic.to_dict() for diagnostic in failure.diagnostics]
        if failure.trace:
            error["traceback"] = failure.trace
        _write(to_json({"version": VERSION, "error": error}))

    def line(self, text: str, data: Mapping[str, Any]) -> None:
        """Show one line of a continuous output. The first line replaces the file's content."""
        line = (json.dumps(data) if self._as_json else text) + "\n"
        if self._file is not None:
            mode, self._begun = "a" if self._begun else "w", True
            with (
                naming(self._file),
                self._file.open(mode, encoding="utf-8", errors="replace") as file,
            ):
                file.write(line)
        elif self._form != "quiet":
            _echo(line)

    def note(self, text: str) -> None:
        """Show a remark apart from the result. Programs get nothing but the result."""
        if self._form == "human":
            _echo(f"{text}\n", err=True)

    def warn(self, text: str) -> None:
        """Show a remark that quiet form shows too."""
        if self._form != "json":
            _echo(f"{text}\n", err=True)

    def progress(self, *, lines: bool = False) -> Display:
        """Return a display of task progress, or of single lines, for people only."""
        from scalable.session.progress import Display, LineDisplay, LiveDisplay, can_draw

        if self._form != "human":
            return Display()
        return LineDisplay() if lines or not can_draw(sys.stderr) else LiveDisplay(sys.stderr)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Convert an OSError into a click.FileError that names the file."""
    try:
        yield
    except OSError as error:
        raise click.FileError(str(path), hint=error.strerror) from error


def write_file(path: Path, text: str) -> None:
    """Replace a file atomically, or raise click.FileError."""
    from scalable.files import write_whole

    with naming(path):
        if path.exists() and not path.is_file():
            # A device or a pipe cannot be replaced, only written to.
            path.write_text(text, encoding="utf-8")
        else:
            write_whole(path.resolve(), text)


def to_json(value: Any) -> str:
    """Format an indented JSON value with a final line break."""
    return json.dumps(value, indent=2, default=str) + "\n"


def render_failure(failure: CommandFailure) -> str:
    """Format a failure as harmless text: traceback, manifest errors, message and hint."""
    lines = [failure.trace.rstrip()] if failure.trace else []
    lines += [diagnostic.render() for diagnostic in failure.diagnostics]
    told = [harmless(line) for line in lines]
    told.append(f"{click.style('error:', fg='red', bold=True)} {harmless(failure.message)}")
    if failure.hint and not failure.diagnostics:
        told.append(f"  hint: {harmless(failure.hint)}")
    return "\n".join(told) + "\n"


def _echo(text: str, *, err: bool = False) -> None:
    _write(harmless(text), err=err)


def _write(text: str, *, err: bool = False) -> None:
    # click removes colours if the output is not a terminal.
    color = False if os.environ.get("NO_COLOR") else None
    try:
        click.echo(text, err=err, nl=False, color=color)
    except OSError as error:
        if err:  # a closed standard error must not change the exit code
            return
        if isinstance(error, BrokenPipeError):
            raise
        raise click.FileError("standard output", hint=error.strerror) from error
