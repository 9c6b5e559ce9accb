"""``scalable logs``."""

from __future__ import annotations

from contextlib import suppress

import click

from scalable import settings
from scalable.cli.options import Command, optional_name_argument
from scalable.cli.output import Output, Result
from scalable.clusters.discovery import only_cluster
from scalable.clusters.logs import LogFile, follow_lines, log_files, read_log, run_logs
from scalable.errors import ClusterError, UnknownClusterError
from scalable.records import ClusterDirectory, find
from scalable.runs.overview import find_run


@click.command(cls=Command)
@optional_name_argument
@click.option("--pool", metavar="TAG", help="Show only workers of this pool.")
@click.option(
    "--worker",
    metavar="NAME",
    help="Show only this worker; `scheduler` and `manager-ID` name the other processes.",
)
@click.option(
    "--follow", is_flag=True, help="Show new lines as they are written, until interrupted."
)
@click.option(
    "--tail",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show only the last N lines of each log; not with --follow.",
)
def command(
    name: str | None,
    *,
    pool: str | None,
    worker: str | None,
    follow: bool,
    tail: int | None,
    output: Output,
) -> Result | None:
    r"""Show the output of workers, including workers that have stopped.
    Without NAME, the only running cluster or session is shown. If none is running, the last run
    recorded in this directory is shown.

    Control characters, such as those for colours, are shown as \x1b, so that output cannot affect
    the terminal. --output writes the logs to a file unchanged.
    """
    if follow and tail is not None:
        raise click.UsageError("--tail and --follow cannot be combined: leave out one of them")
    directory = _directory(name)
    if directory is None:
        if follow:
            raise ClusterError("no cluster is running", hint="leave out --follow")
        return _shown(run_logs(find_run(settings.runs_dir()), pool=pool, worker=worker), tail)
    if follow:
        with suppress(KeyboardInterrupt):
            for source, line in follow_lines(directory, pool=pool, worker=worker):
                output.line(f"{source}: {line}", {"worker": source, "line": line})
        return None
    return _shown(log_files(directory, pool=pool, worker=worker), tail)


def _directory(name: str | None) -> ClusterDirectory | None:
    """Return the cluster of that name, or the only one, or None if there is none."""
    try:
        return find(name or only_cluster())
    except UnknownClusterError as error:
        if name is None:
            return None
        hint = f"{error.hint}; the logs of a stopped cluster are in logs/ of its run's record"
        raise UnknownClusterError(error.message, hint=hint) from None


def _shown(files: list[LogFile], tail: int | None) -> Result:
    texts = {}
    for file in files:
        text = read_log(file.path)
        texts[file.worker] = text if tail is None else "".join(text.splitlines(True)[-tail:])
    shown = [
        f"==> {source} <==\n{text}" + "\n" * (text != "" and text[-1] != "\n")
        for source, text in texts.items()
    ]
    logs = [{"worker": one.worker, "tag": one.tag, "text": texts[one.worker]} for one in files]
    return Result("\n".join(shown) or "no output yet\n", {"logs": logs})
