"""The program: runs a command, and turns every error into a message and an exit code."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

import click

from scalable import __version__, settings
from scalable.cli.options import Group
from scalable.cli.output import CommandFailure, Output
from scalable.errors import ScalableError
from scalable.harmless import make_warnings_harmless

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: Commands by group, in the order of the help, with the first lines of their help. The help and
#: completions load none of them.
GROUPS = {
    "Project": {
        "init": "Start a project: write a manifest, a workflow and a schema.",
        "validate": "Check a manifest; list every error with its position and a hint.",
        "doctor": "Check this machine: each row is ok, or shows a fix.",
        "schema": "Print the JSON Schema of manifests.",
    },
    "Plan": {
        "plan": "Predict the workers, time and cost of a run, with reasons.",
        "prices": "Show the prices that plans use, and where they come from.",
    },
    "Run": {
        "run": "Run a workflow on a target, with its progress and a report.",
        "report": "Report on a recorded run: tasks, workers, failures, results.",
        "runs": "List the recorded runs, or remove old ones.",
        "cache": "List, explain or remove cached results.",
    },
    "Clusters": {
        "up": "Start a cluster that keeps running after this command.",
        "list": "List all clusters with their state.",
        "status": "Show the state of a cluster, its pools and its managers.",
        "explain": "Explain why tasks and pools wait, or why a task failed.",
        "top": "Watch pools, tasks, failures and costs in the terminal.",
        "dashboard": "Show the address of a cluster's dashboard.",
        "logs": "Show the output of workers, including workers that have stopped.",
        "scale": "Set the numbers of workers, or the cluster's budget.",
        "connect": "Show how to connect to a cluster from Python.",
        "manager": "Restart a cluster's managers, or add one from another site.",
        "down": "Stop a cluster: its workers, managers and scheduler.",
        "prune": "Remove the remains of clusters that no longer exist.",
    },
}
#: Modules of ``scalable.cli.commands`` with several commands, called ``<name>_command`` there. All
#: other modules have the name of their only command, or group, which is called ``command``.
SHARED = dict.fromkeys(("init", "validate", "schema"), "project")
SHARED |= dict.fromkeys(
    ("list", "status", "explain", "connect", "scale", "down", "prune"), "clusters"
)
VERBS = {name: line for commands in GROUPS.values() for name, line in commands.items()}
#: The command line is wrong, or a question cannot be asked without a terminal.
USAGE = "E_USAGE"
#: A file cannot be opened or written.
FILE = "E_FILE"
#: You interrupted the command, or did not confirm it.
STOPPED = "E_INTERRUPTED"
#: This version cannot do what was requested.
NOT_AVAILABLE = "E_NOT_AVAILABLE"
#: A bug. ``--debug`` shows the traceback.
UNEXPECTED = "E_UNEXPECTED"
INTERRUPTED = 130
#: Number of new objects after which the garbage collector looks for cycles. Nearly all objects of a
#: command are modules and classes, so the interpreter's default of 700 only costs time.
COLLECT_AFTER = 100_000

_EPILOG = """\
\b
Examples:
  scalable init                                   start a project here
  scalable validate                               check ./scalable.yaml
  scalable plan --target hpc                      predict workers, time and cost there
  scalable run --target local workflow.py -- --years 10
  scalable up --target hpc --name climate         start a cluster that keeps running

\b
Exit codes: 2 manifest or usage, 3 plan, 4 provider, 5 cluster, 6 run record,
1 anything else, 130 interrupted; `list` exits with 3 if a plug-in or a record
cannot be read, `run` with the exit code of the workflow.
"""


class LazyGroup(Group):
    """Group of commands, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        shared = SHARED.get(cmd_name)
        module = importlib.import_module(f"scalable.cli.commands.{shared or cmd_name}")
        name = "command" if shared is None else f"{cmd_name}_command"
        command: click.Command = getattr(module, name)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands with their descriptions, without loading them."""
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(list(commands.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the options and commands with this prefix. Commands are not loaded."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(verb, help=line)
            for verb, line in VERBS.items()
            if verb.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="scalable", help="Show the version and exit.")
def cli() -> None:
    """Run workflows on pools of tagged workers, anywhere.
    The manifest describes what a workflow needs and where it can run. Name it with -f FILE; the
    default is SCALABLE_MANIFEST, then ./scalable.yaml.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    if arguments is None:
        gc.set_threshold(COLLECT_AFTER)
    given = list(sys.argv[1:] if arguments is None else arguments)
    # An error can come before the options are parsed, or because they cannot be parsed.
    options = list(takewhile(lambda word: word != "--", given))
    # The variables are meant for the workflow of an outer `scalable run`, not for commands that the
    # workflow starts.
    for name in (settings.RUN_TARGET, settings.RUN_PLAN):
        os.environ.pop(name, None)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    make_warnings_harmless()
    try:
        code = cli.main(given or ["--help"], prog_name="scalable", standalone_mode=False)
    except Exception as error:  # noqa: BLE001 - the last place that can name it to the user
        failure = failure_of(error, debug="--debug" in options or settings.debug())
        # A reader that closed the pipe needs no message.
        with contextlib.suppress(BrokenPipeError):
            Output(_form(options)).fail(failure)
        code = failure.exit_code
    code = code if isinstance(code, int) else 0
    if arguments is None:
        _leave_plugins_behind(code)
        gc.freeze()  # the interpreter's last collection would visit every module and class
    return code


def _leave_plugins_behind(code: int) -> None:
    """Exit now if an unresponsive plugin's threads could block the exit."""
    discovery = sys.modules.get("scalable.clusters.discovery")
    if discovery is None or not discovery.asking():
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _form(options: Sequence[str]) -> str | None:
    forms = [value for word, value in pairwise(options) if word == "--format"]
    forms += [word.removeprefix("--format=") for word in options if word.startswith("--format=")]
    return forms[-1] if forms else None


def failure_of(error: Exception, *, debug: bool = False) -> CommandFailure:
    """Return the message and exit code for an error, with a traceback if ``debug`` is set."""
    found: tuple[str, str, int, str | None]
    match error:
        case ScalableError():
            found = error.code, error.message, error.exit_code, error.hint
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "scalable"
            found = USAGE, error.format_message(), error.exit_code, f"see {command} --help"
        case click.ClickException():
            found = FILE, error.format_message(), error.exit_code, None
        case click.Abort():
            found = STOPPED, "interrupted", INTERRUPTED, None
        case NotImplementedError():
            found = NOT_AVAILABLE, str(error) or "not available in this version", 4, None
        case _:
            hint = "this is a bug; --debug or SCALABLE_DEBUG=1 shows the traceback"
            named = f"{type(error).__name__}: {error}"
            found = UNEXPECTED, named, 1, None if debug else hint
    trace = "".join(traceback.format_exception(error)) if debug else None
    return CommandFailure(*found, getattr(error, "diagnostics", ()), trace)
