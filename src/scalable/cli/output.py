"""Output of the commands: one interface, three forms. Nothing else in this package prints."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from scalable.harmless import harmless
from scalable.spec import Diagnostic

if TYPE_CHECKING:
    from scalable.session.displays import Display as Progress

FORMS = ("human", "json", "quiet")
#: Version of the JSON values; it rises when a key is removed or changes its meaning.
VERSION = 1
#: Minimum number of seconds between two lines of progress.
LINE_INTERVAL_S = 10.0

_STDERR = 2


@dataclass(frozen=True)
class Result:
    """Result of a command.

    Attributes
    ----------
    text
        Text for people: whole lines, or nothing.
    data
        JSON value for programs.
    document
        Content of a JSON file, where it differs from ``data``.
    companions
        Name -> text of files that are written next to a JSON file.
    faulty
        Whether the result reports faults; such a result is shown in quiet form too.
    files
        Name -> text of files that are written to a directory, in place of a file.
    """

    text: str
    data: Mapping[str, Any]
    document: Mapping[str, Any] | None = None
    companions: Mapping[str, str] = field(default_factory=dict)
    faulty: bool = False
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """Reason why a command failed.

    Attributes
    ----------
    code
        Stable name of the kind of failure.
    message
        Description of the failure.
    exit_code
        Exit code of the program.
    hint
        Advice for the user.
    diagnostics
        Faults of a manifest.
    trace
        Traceback, where requested.
    """

    code: str
    message: str
    exit_code: int
    hint: str | None = None
    diagnostics: Sequence[Diagnostic] = ()
    trace: str | None = None


class Display:
    """Display of progress in words; the base class shows nothing.

    As a context manager it removes what it has drawn at its end.
    """

    def tell(self, elapsed_s: float, text: str) -> None:
        """Show the progress as text.

        Parameters
        ----------
        elapsed_s
            Seconds since the start.
        text
            One line.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class Output(ABC):
    """Destination of a command's output.

    Attributes
    ----------
    script_stdout
        Descriptor for the standard output of a workflow; None for the command's own.
    """

    script_stdout: int | None = None

    @abstractmethod
    def show(self, result: Result) -> None:
        """Show a result."""

    @abstractmethod
    def fail(self, failure: Failure) -> None:
        """Show a failure."""

    def line(self, text: str, data: Mapping[str, Any]) -> None:  # noqa: B027 - silence is a form
        """Show one line of a continuous output."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Show a remark apart from the result."""

    def warn(self, text: str) -> None:
        """Show a warning apart from the result."""
        self.note(text)

    def display(self) -> Display:
        """Return a display of progress in words."""
        return Display()

    def progress(self) -> Progress:
        """Return a display of the progress of calls; by default one that shows nothing."""
        from scalable.session.displays import Display as Progress

        return Progress()


class HumanOutput(Output):
    """Text for people: results on standard output, everything else on standard error.

    All of it is harmless to a terminal, also in a pipe, which mostly ends in one.
    """

    def show(self, result: Result) -> None:
        """Print the text."""
        _echo(result.text)

    def fail(self, failure: Failure) -> None:
        """Print the failure on standard error."""
        _write(render_failure(failure), err=True)

    def line(self, text: str, data: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Print the text."""
        _echo(f"{text}\n")

    def note(self, text: str) -> None:
        """Print the remark on standard error."""
        _echo(f"{text}\n", err=True)

    def display(self) -> Display:
        """Return a display of few whole lines."""
        return LineDisplay()

    def progress(self) -> Progress:
        """Return a live display on a terminal, and one of lines elsewhere."""
        from scalable.session.displays import LineDisplay as Lines
        from scalable.session.displays import LiveDisplay, can_draw

        return LiveDisplay(sys.stderr) if can_draw(sys.stderr) else Lines()


class JsonOutput(Output):
    """One JSON value on standard output, for failures too."""

    script_stdout = _STDERR

    def show(self, result: Result) -> None:
        """Print the value."""
        _write(to_json(result.data))

    def fail(self, failure: Failure) -> None:
        """Print the failure as a value."""
        _write(to_json(failure_data(failure)))

    def line(self, text: str, data: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Print one JSON value on a line of its own."""
        _write(json.dumps(data) + "\n")

    def note(self, text: str) -> None:
        """Show nothing: programs read the value."""


class QuietOutput(Output):
    """Only faults, on standard error."""

    def show(self, result: Result) -> None:
        """Print the result if it reports faults."""
        if result.faulty:
            _echo(result.text, err=True)

    def fail(self, failure: Failure) -> None:
        """Print the failure on standard error."""
        _write(render_failure(failure), err=True)

    def note(self, text: str) -> None:
        """Show nothing."""

    def warn(self, text: str) -> None:
        """Print the warning on standard error."""
        _echo(f"{text}\n", err=True)


class FileOutput(Output):
    """Results in a file, everything else on another output.

    A file holds texts as they are, with the control characters of logs.

    Parameters
    ----------
    inner
        Output for everything else.
    path
        Path of the file.
    as_json
        Whether the file contains JSON.
    """

    def __init__(self, inner: Output, path: Path, *, as_json: bool) -> None:
        self._inner = inner
        self._path = path
        self._as_json = as_json
        self._begun = False
        self.script_stdout = inner.script_stdout

    def show(self, result: Result) -> None:
        """Write the file and its companions."""
        files = {self._path: result.text}
        if self._as_json:
            document = result.data if result.document is None else result.document
            files = {self._path: to_json(document)}
            files |= {self._path.with_name(n): text for n, text in result.companions.items()}
        if result.files and not self._as_json:
            files = {self._path / name: text for name, text in result.files.items()}
            make_directory(self._path)
        for path, text in files.items():
            write_file(path, text)
        self._inner.note(f"wrote {', '.join(str(path) for path in files)}")

    def fail(self, failure: Failure) -> None:
        """Show the failure, and leave the file unchanged."""
        self._inner.fail(failure)

    def line(self, text: str, data: Mapping[str, Any]) -> None:
        """Append a line to the file; the first line replaces its content."""
        mode, self._begun = "a" if self._begun else "w", True
        try:
            with self._path.open(mode, encoding="utf-8", errors="replace") as file:
                file.write((json.dumps(data) if self._as_json else text) + "\n")
        except OSError as error:
            raise click.FileError(str(self._path), hint=error.strerror) from error

    def note(self, text: str) -> None:
        """Show the remark on the other output."""
        self._inner.note(text)

    def warn(self, text: str) -> None:
        """Show the warning on the other output."""
        self._inner.warn(text)

    def display(self) -> Display:
        """Return the display of the other output."""
        return self._inner.display()

    def progress(self) -> Progress:
        """Return the display of the other output."""
        return self._inner.progress()


_OUTPUTS: Mapping[str, type[Output]] = {
    "human": HumanOutput,
    "json": JsonOutput,
    "quiet": QuietOutput,
}


def open_output(form: str | None = None, destination: Path | None = None) -> Output:
    """Return the output for the given options.

    Parameters
    ----------
    form
        One of :data:`FORMS`; anything else means human.
    destination
        File for the results; None or ``-`` for standard output.
    """
    output = _OUTPUTS.get(form or "", HumanOutput)()
    if destination is None or str(destination) == "-":
        return output
    as_json = form == "json" or (form != "human" and destination.suffix.lower() == ".json")
    return FileOutput(output, destination, as_json=as_json)


def make_directory(path: Path) -> None:
    """Make a directory unless it exists.

    Raises
    ------
    click.FileError
        When it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.FileError(str(path), hint=error.strerror) from error


def write_file(path: Path, text: str) -> None:
    """Replace a file in one step.

    Raises
    ------
    click.FileError
        When it cannot be written.
    """
    from scalable.files import write_whole

    try:
        if path.exists() and not path.is_file():
            # A device or a pipe cannot be replaced, only written to.
            path.write_text(text, encoding="utf-8")
        else:
            write_whole(path.resolve(), text)
    except OSError as error:
        raise click.FileError(str(path), hint=error.strerror) from error


def to_json(value: Any) -> str:
    """Return a JSON value as indented text with a final line break."""
    return json.dumps(value, indent=2, default=str) + "\n"


def failure_data(failure: Failure) -> dict[str, Any]:
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


def render_failure(failure: Failure) -> str:
    """Return a failure as text: traceback, faults, message and hint, where present.

    It is harmless to a terminal; the only escape sequences are those that colour ``error:``.
    """
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
    # click removes colours where the output is not a terminal.
    color = False if os.environ.get("NO_COLOR") else None
    # A closed standard error must not change how the program ends.
    with contextlib.suppress(*([BrokenPipeError] if err else [])):
        click.echo(text, err=err, nl=False, color=color)


class LineDisplay(Display):
    """Display of few lines, none equal to the one before."""

    def __init__(self) -> None:
        self._shown = ""
        self._shown_at = float("-inf")

    def tell(self, elapsed_s: float, text: str) -> None:
        """Print a line if enough time has passed and the text has changed."""
        if text == self._shown or elapsed_s - self._shown_at < LINE_INTERVAL_S:
            return
        self._shown, self._shown_at = text, elapsed_s
        _echo(f"[{elapsed_s:4.0f} s] {text}\n", err=True)
