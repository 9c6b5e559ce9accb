"""What the commands print: one interface, three forms. Nothing else in this package prints."""

from __future__ import annotations

import contextlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from scalable.spec import Diagnostic

if TYPE_CHECKING:
    from scalable.cli.progress import PoolCounts

FORMS = ("human", "json", "quiet")
#: Rises when a key of a JSON value goes or changes its meaning.
VERSION = 1
#: A log is told of progress at most so often, in seconds.
LINE_INTERVAL_S = 10.0

_STDERR = 2


@dataclass(frozen=True)
class Result:
    """What a command found.

    Attributes
    ----------
    text
        For people: whole lines, or nothing.
    data
        For programs: one JSON value.
    document
        What a JSON file holds, where that is not ``data``.
    companions
        Name -> text of files that belong beside such a JSON file.
    faulty
        Whether it says what is wrong; such a result is shown even where little is.
    forms
        Suffix -> text of a file of that kind, such as ``.svg``.
    """

    text: str
    data: Mapping[str, Any]
    document: Mapping[str, Any] | None = None
    companions: Mapping[str, str] = field(default_factory=dict)
    faulty: bool = False
    forms: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """Why a command could not do what was asked.

    Attributes
    ----------
    code
        Stable name of the kind of failure.
    message
        What went wrong.
    exit_code
        How the program ends.
    hint
        The way out.
    diagnostics
        The faults of a manifest.
    trace
        The traceback, where it was asked for.
    """

    code: str
    message: str
    exit_code: int
    hint: str | None = None
    diagnostics: Sequence[Diagnostic] = ()
    trace: str | None = None


class Display:
    """Shows the progress of what takes long; this one shows nothing.

    A context manager: what it has drawn is gone behind it.
    """

    def update(self, elapsed_s: float, pools: Mapping[str, PoolCounts]) -> None:
        """Show how far it is.

        Parameters
        ----------
        elapsed_s
            Seconds since the start.
        pools
            Tag -> counts.
        """

    def tell(self, elapsed_s: float, text: str) -> None:
        """Show how far it is, in words.

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
    """Where a command's words go.

    Attributes
    ----------
    script_stdout
        The descriptor for the standard output of a workflow; None where it is our own.
    """

    script_stdout: int | None = None

    @abstractmethod
    def show(self, result: Result) -> None:
        """Show what was found."""

    @abstractmethod
    def fail(self, failure: Failure) -> None:
        """Show why nothing was."""

    def line(self, text: str, data: Mapping[str, Any]) -> None:  # noqa: B027 - silence is a form
        """Show one of many lines, as it comes."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Remark on the side what people may want to know."""

    def warn(self, text: str) -> None:
        """Say on the side what is wrong, where the result says so too."""
        self.note(text)

    def display(self) -> Display:
        """Something that shows the progress of what takes long."""
        return Display()


class HumanOutput(Output):
    """Text: results on standard output, everything else on standard error."""

    def show(self, result: Result) -> None:
        """Print the text."""
        _echo(result.text)

    def fail(self, failure: Failure) -> None:
        """Print the failure on standard error."""
        _echo(render_failure(failure), err=True)

    def line(self, text: str, data: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Print the text."""
        _echo(f"{text}\n")

    def note(self, text: str) -> None:
        """Print the remark on standard error."""
        _echo(f"{text}\n", err=True)

    def display(self) -> Display:
        """Few whole lines: the workflow prints to the same terminal, and may do so at any time."""
        return LineDisplay()


class JsonOutput(Output):
    """One JSON value on standard output, whatever happens."""

    script_stdout = _STDERR

    def show(self, result: Result) -> None:
        """Print the value."""
        _echo(to_json(result.data))

    def fail(self, failure: Failure) -> None:
        """Print the failure as a value."""
        _echo(to_json(failure_data(failure)))

    def line(self, text: str, data: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Print one JSON value on a line of its own."""
        _echo(json.dumps(data) + "\n")

    def note(self, text: str) -> None:
        """Say nothing: programs read the value."""


class QuietOutput(Output):
    """Nothing but what is wrong, on standard error."""

    def show(self, result: Result) -> None:
        """Print only findings."""
        if result.faulty:
            _echo(result.text, err=True)

    def fail(self, failure: Failure) -> None:
        """Print the failure on standard error."""
        _echo(render_failure(failure), err=True)

    def note(self, text: str) -> None:
        """Say nothing."""

    def warn(self, text: str) -> None:
        """Print what is wrong on standard error."""
        _echo(f"{text}\n", err=True)


class FileOutput(Output):
    """Results in a file; everything else as before.

    Parameters
    ----------
    inner
        For everything else.
    path
        The file.
    as_json
        Whether it holds JSON.
    """

    def __init__(self, inner: Output, path: Path, *, as_json: bool) -> None:
        self._inner = inner
        self._path = path
        self._as_json = as_json
        self._begun = False
        self.script_stdout = inner.script_stdout

    def show(self, result: Result) -> None:
        """Write the file, and the files that belong beside it."""
        files = {self._path: result.forms.get(self._path.suffix.lower(), result.text)}
        if self._as_json:
            document = result.data if result.document is None else result.document
            files = {self._path: to_json(document)}
            files |= {self._path.with_name(n): text for n, text in result.companions.items()}
        for path, text in files.items():
            write_file(path, text)
        self._inner.note(f"wrote {', '.join(str(path) for path in files)}")

    def fail(self, failure: Failure) -> None:
        """Leave the file as it is."""
        self._inner.fail(failure)

    def line(self, text: str, data: Mapping[str, Any]) -> None:
        """Add a line to the file, which the first one begins anew."""
        mode, self._begun = "a" if self._begun else "w", True
        try:
            with self._path.open(mode, encoding="utf-8", errors="replace") as file:
                file.write((json.dumps(data) if self._as_json else text) + "\n")
        except OSError as error:
            raise click.FileError(str(self._path), hint=error.strerror) from error

    def note(self, text: str) -> None:
        """Remark on the side."""
        self._inner.note(text)

    def warn(self, text: str) -> None:
        """Say on the side what is wrong."""
        self._inner.warn(text)

    def display(self) -> Display:
        """Show progress."""
        return self._inner.display()


_OUTPUTS: Mapping[str, type[Output]] = {
    "human": HumanOutput,
    "json": JsonOutput,
    "quiet": QuietOutput,
}


def open_output(form: str | None = None, destination: Path | None = None) -> Output:
    """The output that was asked for.

    Parameters
    ----------
    form
        One of :data:`FORMS`; anything else stands for human.
    destination
        A file for the results; None or ``-`` for standard output.
    """
    output = _OUTPUTS.get(form or "", HumanOutput)()
    if destination is None or str(destination) == "-":
        return output
    as_json = form == "json" or (form != "human" and destination.suffix.lower() == ".json")
    return FileOutput(output, destination, as_json=as_json)


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
            # A device or a pipe is written to; only a file can be replaced.
            path.write_text(text, encoding="utf-8")
        else:
            write_whole(path.resolve(), text)
    except OSError as error:
        raise click.FileError(str(path), hint=error.strerror) from error


def to_json(value: Any) -> str:
    """A JSON value as text that people can read too, the last line ended."""
    return json.dumps(value, indent=2, default=str) + "\n"


def failure_data(failure: Failure) -> dict[str, Any]:
    """A failure as one versioned JSON value."""
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
    """A failure as text: traceback, faults, message and hint, as far as there are."""
    lines = [failure.trace.rstrip()] if failure.trace else []
    lines += [diagnostic.render() for diagnostic in failure.diagnostics]
    lines.append(f"{click.style('error:', fg='red', bold=True)} {failure.message}")
    if failure.hint and not failure.diagnostics:
        lines.append(f"  hint: {failure.hint}")
    return "\n".join(lines) + "\n"


def _echo(text: str, *, err: bool = False) -> None:
    # click takes colours away where no terminal would show them.
    color = False if os.environ.get("NO_COLOR") else None
    # Remarks that nobody reads must not change how the program ends.
    with contextlib.suppress(*([BrokenPipeError] if err else [])):
        click.echo(text, err=err, nl=False, color=color)


class LineDisplay(Display):
    """Lines for a log: few, and none that says what the last one said."""

    def __init__(self) -> None:
        self._shown = ""
        self._shown_at = float("-inf")

    def update(self, elapsed_s: float, pools: Mapping[str, PoolCounts]) -> None:
        """Print a line when it is time for one and something changed."""
        from scalable.cli.progress import render_pools

        self.tell(elapsed_s, render_pools(pools))

    def tell(self, elapsed_s: float, text: str) -> None:
        """Print a line when it is time for one and something changed."""
        if text == self._shown or elapsed_s - self._shown_at < LINE_INTERVAL_S:
            return
        self._shown, self._shown_at = text, elapsed_s
        _echo(f"[{elapsed_s:4.0f} s] {text}\n", err=True)
