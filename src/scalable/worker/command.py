"""`command`: a program as the function of a task."""

from __future__ import annotations

import os
import shlex
import signal
import string
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from scalable.cache.errors import UnstableValueError
from scalable.cache.files import File
from scalable.errors import RunError
from scalable.units import seconds_of

#: Maximum number of characters of a program's output in an error message.
_SHOWN = 2000


def command(
    template: str,
    *,
    inputs: Iterable[str | os.PathLike[str]] = (),
    outputs: Iterable[str | os.PathLike[str]] = (),
    check: bool = True,
    timeout: str | float | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Callable[..., CommandResult]:
    """Return a function that runs a program, to be submitted as a task.

    An argument that is a :class:`File` is a file that the program reads. It must exist, and a cache
    key covers its content.

    Parameters
    ----------
    template
        Command line. It is split into words as a shell would, but no shell runs: pipes and
        wildcards have no meaning. ``{name}`` stands for the keyword argument of that name, ``{}``
        for the next positional argument. A word that is only ``{name}`` becomes several words if
        the argument is a list or tuple.
    inputs
        Other files that the program reads, such as a configuration or the program itself.
    outputs
        Files that the program writes: names of arguments that are their paths, or other paths.
        Their directories are created. Each file must exist after the program has finished.
    check
        Whether an exit code other than 0 fails the task.
    timeout
        Time after which the program is killed and the task fails, in seconds or as a string such as
        ``"5 min"``. None for no limit.
    env
        Environment variables in addition to the worker's.
    cwd
        Working directory of the program. By default, the worker's.

    Returns
    -------
    callable
        Function that takes the arguments of the template and returns a :class:`CommandResult`. Its
        tasks raise RunError if the program cannot be started, fails, takes too long, or does
        not write an output.

    Raises
    ------
    ValueError
        When the template is empty or malformed.

    Examples
    --------
    >>> run = scalable.command("./model {scenario} -o {result}", outputs=["result"])
    >>> client.submit(run, scenario=scalable.File("low.csv"), result="low.nc",
    ...               tag="model", cache=True)  # doctest: +SKIP
    """
    words = tuple(shlex.split(template))
    if not words:
        raise ValueError("the template of a command is empty")
    names = {name for word in words for _, name, _, _ in string.Formatter().parse(word) if name}
    limit_s = seconds_of("timeout", timeout)
    if limit_s is not None and not 0 < limit_s <= threading.TIMEOUT_MAX:
        raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
    program = CommandLine(
        words=words,
        inputs=tuple(File(path) for path in inputs),
        named_outputs=tuple(str(name) for name in outputs if name in names),
        other_outputs=tuple(os.fspath(path) for path in outputs if path not in names),
        check=check,
        timeout=limit_s,
        env=tuple(sorted((env or {}).items())),
        cwd=None if cwd is None else os.path.abspath(cwd),  # noqa: PTH100 - links stay
    )
    return partial(run_program, program)


@dataclass(frozen=True)
class CommandResult:
    """Outcome of a program.

    Attributes
    ----------
    returncode
        Exit code, or the negative number of the signal that killed the program.
    stdout, stderr
        Output of the program. Bytes that are not UTF-8 are replaced.
    outputs
        Files that it wrote, by the argument's name or the path in ``outputs=``.
    """

    returncode: int
    stdout: str
    stderr: str
    outputs: Mapping[str, File]
    #: Size, times and inode of each output file when the program had finished.
    states: tuple[tuple[int, ...], ...] = ()

    def check_cached(self) -> None:
        """Raise UnstableValueError if an output file was changed or removed after the run."""
        try:
            now = _states(self.outputs)
        except OSError as error:
            raise UnstableValueError(
                self, f"refers to an output file that no longer exists ({error})"
            ) from error
        if self.states != now:
            raise UnstableValueError(self, "refers to an output file that has changed")


@dataclass(frozen=True)
class CommandLine:
    """Parsed command line and options of a program, with the files that it reads and writes."""

    words: tuple[str, ...]
    inputs: tuple[File, ...]
    named_outputs: tuple[str, ...]
    other_outputs: tuple[str, ...]
    check: bool
    timeout: float | None
    env: tuple[tuple[str, str], ...]
    cwd: str | None

    def command_line(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
        """Return the command line for a task's arguments. Raises TypeError if they do not fit."""
        line: list[str] = []
        rest = iter(args)
        used = set()
        for word in self.words:
            pieces = list(string.Formatter().parse(word))
            names = [name for _, name, _, _ in pieces if name is not None]
            try:
                values = {name: kwargs[name] if name else next(rest) for name in names}
            except KeyError as error:
                raise TypeError(f"the command needs an argument {error}") from None
            except StopIteration:
                raise TypeError("the command needs more positional arguments") from None
            used.update(names)
            if len(pieces) == 1 and names and not pieces[0][0]:
                value = values[names[0]]
                line += map(str_of, value) if isinstance(value, (list, tuple)) else [str_of(value)]
            else:
                line.append(
                    "".join(
                        text + (str_of(values[name]) if name is not None else "")
                        for text, name, _, _ in pieces
                    )
                )
        unused = [*map(repr, rest), *(name for name in kwargs if name not in used)]
        if unused:
            raise TypeError(f"the command does not use: {', '.join(unused)}")
        return line


def run_program(program: CommandLine, *args: Any, **kwargs: Any) -> CommandResult:
    """Run a program with the arguments of a task."""
    line = program.command_line(args, kwargs)
    where = Path(program.cwd or ".")
    reads = [*program.inputs, *(v for v in (*args, *kwargs.values()) if isinstance(v, File))]
    for file in reads:
        if not file.path.exists():
            raise RunError(f"{line[0]}: its input {file.path} does not exist")
    paths = {name: where / str_of(kwargs[name]) for name in program.named_outputs}
    paths |= {path: where / path for path in program.other_outputs}
    for path in paths.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    code, stdout, stderr = _run(program, line)
    shown = (stderr.strip() or stdout.strip())[-_SHOWN:]
    if program.check and code:
        signalled = f"was killed by {signal.Signals(-code).name}" if code < 0 else ""
        raise RunError(f"{shlex.join(line)} {signalled or f'exited with code {code}'}: {shown}")
    for name, path in paths.items():
        if not path.exists():
            raise RunError(
                f"{line[0]} did not write its output {name}: {path}. It printed: {shown}"
            )
    outputs = {name: File(path) for name, path in paths.items()}
    return CommandResult(code, stdout, stderr, outputs, _states(outputs))


def _run(program: CommandLine, line: list[str]) -> tuple[int, str, str]:
    # In the worker's process group, which is killed if the worker's owner exits.
    try:
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=os.environ | dict(program.env),
            cwd=program.cwd,
        )
    except OSError as error:
        raise RunError(f"{line[0]} cannot be started: {error}") from error
    try:
        stdout, stderr = process.communicate(timeout=program.timeout)
    except BaseException as error:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()
        # A program in the background may hold the other ends: nothing waits for them.
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        if isinstance(error, subprocess.TimeoutExpired):
            raise RunError(f"{line[0]} was killed after {program.timeout:g} s") from None
        raise
    return process.returncode, stdout, stderr


def str_of(value: Any) -> str:
    """Return an argument as a word of a command line."""
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _states(outputs: Mapping[str, File]) -> tuple[tuple[int, ...], ...]:
    """Return file metadata that changes with every write to one of the files (``stat(2)``)."""
    found = [file.path.stat() for file in outputs.values()]
    return tuple((s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for s in found)
