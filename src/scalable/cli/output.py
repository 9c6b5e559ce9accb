"""Output of the commands: one interface, three forms. Only this module prints."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalable.harmless import harmless
from scalable.model import Diagnostic

if TYPE_CHECKING:
    from scalable.session.displays import Display as Progress

FORMS = ("human", "json", "quiet")
#: Version of the JSON values; it rises when a key is removed or changes its meaning.
VERSION = 1
#: Minimum number of seconds between two progress lines.
LINE_INTERVAL_S = 10.0

_STDERR = 2


@dataclass(frozen=True)
class Result:
    """Result of a command."""

    #: Whole lines for users, or nothing.
    text: str
    #: JSON value for programs.
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


class Output(ABC):
    """Destination of a command's output."""

    script_stdout: int | None = None

    @abstractmethod
    def show(self, result: Result) -> None:
        """Show a result."""

    def fail(self, failure: CommandFailure) -> None:
        """Show a failure, by default on standard error."""
        _write(render_failure(failure), err=True)

    def line(self, text: str, data: Mapping[str, Any]) -> None:  # noqa: B027 - silence is a form
        """Show one line of a continuous output."""

    def note(self, text: str) -> None:  # noqa: B027 - programs get nothing but the result
        """Show a remark apart from the result."""

    def warn(self, text: str) -> None:
        self.note(text)

    def display(self) -> Callable[[float, str], None]:
        """Return a function that shows a line of progress, with the seconds since the start."""
        return lambda _elapsed_s, _text: None

    def progress(self) -> Progress:
        """Return a display of task progress, by default one that shows nothing."""
        from scalable.session.displays import Display as Progress

        return Progress()


class HumanOutput(Output):
    """Plain text for users: results on standard output, everything else on standard error.
    All output is harmless to a terminal, even in a pipe, because a pipe often ends in one.
    """

    def show(self, result: Result) -> None:
        _echo(result.text)

    def line(self, text: str, data: Mapping[str, Any]) -> None:  # noqa: ARG002
        _echo(f"{text}\n")

    def note(self, text: str) -> None:
        _echo(f"{text}\n", err=True)

    def display(self) -> Callable[[float, str], None]:
        return ChangedLines().tell

    def progress(self) -> Progress:
        from scalable.session.displays import LineDisplay as Lines
        from scalable.session.displays import LiveDisplay, can_draw

        return LiveDisplay(sys.stderr) if can_draw(sys.stderr) else Lines()


class JsonOutput(Output):
    """One JSON value on standard output, even for failures."""

    script_stdout = _STDERR

    def show(self, result: Result) -> None:
        _write(to_json(result.data))

    def fail(self, failure: CommandFailure) -> None:
        _write(to_json(failure_data(failure)))

    def line(self, text: str, data: Mapping[str, Any]) -> None:  # noqa: ARG002
        _write(json.dumps(data) + "\n")


class QuietOutput(Output):
    """Output that shows only errors, on standard error."""

    def show(self, result: Result) -> None:
        if result.faulty:
            _echo(result.text, err=True)

    def warn(self, text: str) -> None:
        _echo(f"{text}\n", err=True)


class FileOutput(Output):
    """Output of results to a file, and of everything else to another output.
    The file contains strings unchanged, with the control characters of logs.
    """

    def __init__(self, inner: Output, path: Path, *, as_json: bool) -> None:
        self._inner = inner
        self._path = path
        self._as_json = as_json
        self._begun = False
        self.script_stdout = inner.script_stdout

    def show(self, result: Result) -> None:
        files = {self._path: result.text}
        if self._as_json:
            document = result.data if result.document is None else result.document
            files = {self._path: to_json(document)}
            files |= {self._path.with_name(n): text for n, text in result.companions.items()}
        if result.files and not self._as_json:
            files = {self._path / name: text for name, text in result.files.items()}
            with naming(self._path):
                self._path.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            write_file(path, text)
        self._inner.note(f"wrote {', '.join(str(path) for path in files)}")

    def fail(self, failure: CommandFailure) -> None:
        self._inner.fail(failure)

    def line(self, text: str, data: Mapping[str, Any]) -> None:
        """Append a line to the file. The first line replaces its content."""
        mode, self._begun = "a" if self._begun else "w", True
        with (
            naming(self._path),
            self._path.open(mode, encoding="utf-8", errors="replace") as file,
        ):
            file.write((json.dumps(data) if self._as_json else text) + "\n")

    def note(self, text: str) -> None:
        self._inner.note(text)

    def warn(self, text: str) -> None:
        self._inner.warn(text)

    def display(self) -> Callable[[float, str], None]:
        return self._inner.display()

    def progress(self) -> Progress:
        return self._inner.progress()


_OUTPUTS: Mapping[str, type[Output]] = {
    "human": HumanOutput,
    "json": JsonOutput,
    "quiet": QuietOutput,
}


def open_output(form: str | None = None, destination: Path | None = None) -> Output:
    """Return the output for a form of :data:`FORMS` (default human) and a file (default stdout)."""
    output = _OUTPUTS.get(form or "", HumanOutput)()
    if destination is None or str(destination) == "-":
        return output
    as_json = form == "json" or (form != "human" and destination.suffix.lower() == ".json")
    return FileOutput(output, destination, as_json=as_json)


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


def failure_data(failure: CommandFailure) -> dict[str, Any]:
    """Return a failure as one versioned JSON value."""
    error: dict[str, Any] = {
        "code": failure.code,
        "message": failure.message,
        "hint": failure.hint,
        "exit_code": failure.exit_code,
    }
    if failure.diagnostics:
        error["diagnostics"] = [diagnostic.to_dict() for diagnostic in failure.diagnostics]
    if failure.trace:
        error["traceback"] = failure.trace
    return {"version": VERSION, "error": error}


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
    # A closed standard error must not change the exit code.
    with contextlib.suppress(*([OSError] if err else [])):
        try:
            click.echo(text, err=err, nl=False, color=color)
        except BrokenPipeError:
            raise
        except OSError as error:
            if err:
                raise
            raise click.FileError("standard output", hint=error.strerror) from error


class ChangedLines:
    """Progress that prints changed lines, at most every :data:`LINE_INTERVAL_S` seconds."""

    def __init__(self) -> None:
        self._shown = ""
        self._shown_at = float("-inf")

    def tell(self, elapsed_s: float, text: str) -> None:
        if text == self._shown or elapsed_s - self._shown_at < LINE_INTERVAL_S:
            return
        self._shown, self._shown_at = text, elapsed_s
        _echo(f"[{elapsed_s:4.0f} s] {text}\n", err=True)
