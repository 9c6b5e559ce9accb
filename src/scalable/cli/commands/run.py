"""``scalable run``."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from typing import Any

import click

from scalable import settings
from scalable.cli.commands.plan import plan_result
from scalable.cli.options import Command, complete_cluster, confirm, manifest_option, target_option
from scalable.cli.output import Output, Result
from scalable.cli.plans import AskedPlan, costs_money, said_cost, started_plan_options
from scalable.cli.resuming import Resumed, nothing_kept, resumed_run, unkept
from scalable.cli.workflow import Followed, ScriptTerminal, run_script
from scalable.clusters.record import default_name
from scalable.clusters.remote import flush_run
from scalable.clusters.services import READY_TIMEOUT_S, wait_until_ready
from scalable.errors import RunError
from scalable.model import Plan, names
from scalable.records import ClusterDirectory, find
from scalable.runs.directory import EndStatus, amend_status, require_writable
from scalable.runs.overview import LATEST
from scalable.runs.reading import RunPart, read_run
from scalable.runs.report.plans import after_startup
from scalable.runs.report.run_report import RunReport, report_on
from scalable.runs.streams import StoredRows
from scalable.session.progress import Display, LiveDisplay
from scalable.session.request import Request
from scalable.units import format_duration

_INTERRUPTED = 130
#: Maximum wait until the cluster's scheduler has recorded the last finished tasks.
_RECORDED_S = 10.0
#: Seconds without work after which a run's own cluster stops, if this process was killed.
_ABANDONED_S = 600.0
#: Characters of a default name to which a suffix is added.
_LONGEST_NAME = names.CLUSTER.longest - 7
_ARGUMENTS = "scalable.workflow_arguments"
_PATHS = (".yaml", ".yml", ".toml", ".py")


class RunCommand(Command):
    """Command that leaves the arguments after ``--`` to the workflow."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta[_ARGUMENTS] = args[cut + 1 :]
        rest = super().parse_args(ctx, args[:cut])
        given, resume = ctx.params.get("given"), ctx.params.get("resume")
        if given is None and resume is not None and resume.endswith(_PATHS):
            # After --resume, a workflow or a manifest is the argument, and the last run is meant.
            ctx.params |= {"given": Path(resume), "resume": LATEST}
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGS...]"]


@click.command(cls=RunCommand)
@click.argument("given", required=False, type=click.Path(path_type=Path), metavar="[WORKFLOW]")
@manifest_option
@target_option(
    "The target to run on; overrides the workflow's own. Default: the workflow's, "
    "SCALABLE_TARGET, the target `local`, or the manifest's only target."
)
@click.option(
    "--workflow",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The workflow. With this option, the argument may be the manifest.",
)
@click.option(
    "--cluster",
    metavar="NAME",
    shell_complete=complete_cluster,
    help="Use this running cluster instead of starting one; it keeps running afterwards.",
)
@click.option(
    "--detach",
    is_flag=True,
    help="Run on a detached cluster, created for this run as with `scalable up`, and deleted after "
    "it. If the target has `scheduler: job`, the scheduler runs in a job.",
)
@click.option(
    "--resume",
    is_flag=False,
    flag_value=LATEST,
    metavar="[RUN]",
    help="Reuse the kept results of this run instead of running those tasks again. Default, and "
    "`latest`: the project's last run (on --target) that kept results.",
)
@click.option(
    "--keep-despite-code",
    is_flag=True,
    help="With --resume, also reuse results of functions whose code has changed since that run. "
    "Only tasks that failed or have other arguments run.",
)
@click.option(
    "--synchronous",
    is_flag=True,
    help="Run each task in the workflow's own process when it is submitted, so that a debugger "
    "can be used; start nothing on the target.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan; start nothing.")
@click.option("--yes", is_flag=True, help="Spend money without asking for confirmation.")
@started_plan_options
@click.pass_context
def command(  # noqa: PLR0913 - what a user may say
    ctx: click.Context,
    /,
    given: Path | None,
    manifest_file: Path | None,
    target: str | None,
    *,
    workflow: Path | None,
    cluster: str | None,
    detach: bool,
    resume: str | None,
    keep_despite_code: bool,
    synchronous: bool,
    dry_run: bool,
    yes: bool,
    asked: AskedPlan,
    output: Output,
) -> Result:
    """Run a workflow on a target, with its progress and a report.
    With --objective, --policy, --deadline or --plan, the workflow's sessions on this manifest start
    the workers of that plan. `--dry-run` shows the plan.

    On a target that costs money, the command shows the cost and asks first.

    WORKFLOW is a Python script that runs in its own process; by default workflow.py next to the
    manifest. The exit code is that of the script.
    """
    path, script = _manifest_and_script(given, manifest_file, workflow)
    if keep_despite_code and resume is None:
        raise click.UsageError("--keep-despite-code needs a run to resume: add --resume")
    _refuse_running(asked, cluster, detach=detach, synchronous=synchronous)
    # Errors of the request are raised here, before anything has started.
    directory = None if cluster is None else find(cluster)
    request, plan = asked.read(path, _target_of(directory, path, target))
    resumed = None if resume is None else resumed_run(resume, request.spec.project_name, target)
    budget = asked.spending_limit(plan)
    if plan is None:
        plan = asked.make(request, output, detached=detach)
    if dry_run:
        return plan_result(plan)
    _check_start(request, plan, directory, target, yes=yes or synchronous)
    # A name that starts with "-" would be an option of the interpreter.
    command_line = [sys.executable, f"./{script}" if str(script)[0] == "-" else str(script)]
    command_line += ctx.meta[_ARGUMENTS]
    if resumed is not None and (lacking := nothing_kept(resumed)) is not None:
        output.warn(lacking)
    with ExitStack() as stack:
        plan_file = None
        if detach:
            directory = stack.enter_context(_own_cluster(request, plan, budget, output))
        elif asked.chosen:
            target = request.target  # the plan is for this target, whatever the script names
            plan_file = stack.enter_context(_handed_over(plan, output))
        part = None if directory is None else _part_of_run(directory)
        environ = _environment(
            {
                settings.MANIFEST: path.absolute(),
                settings.RUN_TARGET: target,
                settings.TARGET: target,
                settings.CLUSTER: None if directory is None else directory.id,
                settings.RUN_PLAN: plan_file,
                settings.BUDGET: None if detach or budget is None else f"{budget:g}",
                settings.RESUMED: resumed,
                settings.RESUMED_DESPITE_CODE: "1" if keep_despite_code else None,
                settings.SYNCHRONOUS: "1" if synchronous else None,
            }
        )
        # A live display would draw over a debugger.
        display = nullcontext(Display()) if synchronous else output.progress()
        code, runs = _follow(command_line, environ, output, display)
        if directory is not None and part is not None:
            flush_run(directory)
    if code:
        output.note(f"{script} exited with code {_in_words(code)}")
    rows = [row for run in runs for row in _cache_rows(run, part)]
    for sentence in unkept(rows):
        output.note(sentence)
    texts, data = _reports(runs, code, output, part, attached=directory is not None)
    if resumed is not None:
        is_complete = all(one["status"] != "interrupted" for one in data["reports"])
        compared = Resumed.of(resumed, rows, is_complete=is_complete)
        texts.append(str(compared))
        data["resumed"] = asdict(compared)
    return Result("\n".join(texts), data, exit_code=code)


def _target_of(
    directory: ClusterDirectory | None, manifest: Path, target: str | None
) -> str | None:
    """Return the requested target, or else that of the cluster, if the manifest has it."""
    if target is not None or directory is None:
        return target
    from scalable.manifest import read_targets

    its = directory.record().target
    return its if its in read_targets(manifest) else None


def _refuse_running(
    asked: AskedPlan, cluster: str | None, *, detach: bool, synchronous: bool
) -> None:
    """Raise click.UsageError for a requested plan if sessions would not start workers for it."""
    if detach and (cluster is not None or synchronous):
        raise click.UsageError("--detach creates a cluster: leave out --cluster and --synchronous")
    if synchronous:
        if cluster is not None or asked.chosen:
            raise click.UsageError("--synchronous starts no workers: leave out --cluster and plans")
        return
    if cluster is not None and asked.options == ["--budget"]:
        raise click.UsageError(
            f"--budget does not apply to --cluster: use `scalable scale {cluster} --budget "
            f"{asked.budget:g}`"
        )
    running = cluster or os.environ.get(settings.CLUSTER)
    if running and asked.chosen:
        raise click.UsageError(
            f"cluster {running!r} already has workers: apply a plan with `scalable up --name "
            f"{running}`, and leave out {', '.join(asked.options) or '--plan'} here"
        )


def _in_words(code: int) -> str:
    """Return an exit code, with the signal's name for a code over 128."""
    with suppress(ValueError):
        return f"{code} ({signal.Signals(code - 128).name})"
    return str(code)


def _environment(given: Mapping[str, object]) -> dict[str, str]:
    """Return the variables of the workflow. This process's own stay where ``given`` has None."""
    # What an outer run resumes is not for this one.
    of_outer = (settings.RESUMED, settings.RESUMED_DESPITE_CODE)
    own = {name: value for name, value in os.environ.items() if name not in of_outer}
    return own | {name: str(value) for name, value in given.items() if value is not None}


def _check_start(
    request: Request,
    plan: Plan,
    directory: ClusterDirectory | None,
    target: str | None,
    *,
    yes: bool,
) -> None:
    """Check that the run can start, and ask for confirmation if it costs money."""
    if directory is not None:
        runs_on = directory.record().target
        if target not in (None, runs_on):
            raise click.UsageError(f"cluster runs on target {runs_on!r}, not on {target!r}")
        return
    request.require_clusters()
    if settings.telemetry_enabled():
        require_writable()
    if costs_money(request.spec, plan):
        confirm(f"{said_cost(plan)} Run on {request.target!r}?", yes=yes)


@contextmanager
def _own_cluster(
    request: Request, plan: Plan, budget: float | None, output: Output
) -> Iterator[ClusterDirectory]:
    """Yield a detached cluster whose scheduler answers, and delete it on exit or a signal."""
    from scalable.clusters.creation import DetachOptions
    from scalable.clusters.ending import end
    from scalable.session.detached import create_cluster

    name = f"{default_name(request.spec)[:_LONGEST_NAME]}-{token_hex(3)}"
    options = DetachOptions(
        name=name,
        idle_timeout_s=_ABANDONED_S,
        processes=request.spec.options.get("processes") is False,
        budget=budget,
    )
    # nohup has SIGHUP ignored.
    before = {
        number: signal.signal(number, _exit)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        made = create_cluster(request, plan, options)
        output.note(f"cluster {name!r} is starting; it will be deleted after the run")
        wait_until_ready(made, timeout_s=READY_TIMEOUT_S, workers=False)
        yield made
    finally:
        end(name)  # also if an interrupt came while it was created
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _part_of_run(directory: ClusterDirectory) -> RunPart | None:
    """Return the new part of a detached cluster's run, or None without telemetry."""
    flush_run(directory)
    run = (directory.scheduler() or {}).get("run")
    return RunPart(run) if run else None


def _manifest_and_script(
    given: Path | None, manifest: Path | None, script: Path | None
) -> tuple[Path, Path]:
    """Return the manifest and the workflow. ``given`` is the command's argument: one of them."""
    for path in (given, script):
        if path is not None and path.suffix == ".ipynb":
            raise click.UsageError(
                f"{path} is a notebook: convert it with `jupyter nbconvert --to script`"
            )
    if given is not None and given.suffix == ".py":
        if script is not None:
            raise click.UsageError(f"{given} and {script} are two workflows: give only one")
        script = given
    elif given is not None:
        if manifest is not None:
            raise click.UsageError(f"{given} and {manifest} are two manifests: give only one")
        manifest = given
    path = settings.manifest_path(manifest)
    if script is None:
        script = path.parent / "workflow.py"
        if not script.is_file():
            raise click.UsageError(f"there is no workflow {script}: give the path of one")
    elif not script.is_file():
        raise click.UsageError(f"there is no workflow {script}: check its path")
    elif manifest is None and not path.exists():
        beside = (script.parent / name for name in settings.MANIFEST_NAMES)
        path = next(filter(Path.exists, beside), path)
    return path, script


def _follow(
    command_line: Sequence[str],
    environ: Mapping[str, str],
    output: Output,
    progress: AbstractContextManager[Display],
) -> tuple[int, list[Path]]:
    """Run the script with its progress. Return its exit code, and the runs that it recorded."""
    with _exchange() as listing, _exchange() as shown, progress as display:
        followed = Followed(listing, shown)
        environ = {**environ, settings.RUN_LIST: str(listing)}
        given: dict[str, Any] = {"stdout": output.script_stdout}
        if type(display) is not Display:
            environ[settings.RUN_OVERVIEWS] = str(shown)
            given["watch"] = lambda: display.update(followed.overviews())
        with ExitStack() as stack:
            if isinstance(display, LiveDisplay):  # the script's output is shown above it
                terminal = stack.enter_context(ScriptTerminal(display, sys.stderr))
                given |= {"stderr": terminal.descriptor, "started": terminal.begin}
                given["stdout"] = terminal.descriptor if sys.stdout.isatty() else None
            code = run_script(command_line, environ, **given)
        return code, followed.runs()


@contextmanager
def _handed_over(plan: Plan, output: Output) -> Iterator[Path]:
    """Yield a file with the plan for sessions, after a remark about the plan."""
    counts = ", ".join(f"{tag} {n}" for tag, n in plan.scale_plan.workers_by_tag.items())
    known = plan.predicted_time_s
    about = "" if known is None else f"; about {format_duration(after_startup(plan, known))}"
    output.note(f"plan: {counts}{about}")
    with _exchange() as file:
        file.write_text(json.dumps(plan.to_dict()), encoding="utf-8")
        yield file


@contextmanager
def _exchange() -> Iterator[Path]:
    """Yield the path of an empty exchange file for sessions, already unlinked if possible."""
    with tempfile.TemporaryFile() as file:
        path = Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        if path.exists():
            yield path
            return
    with tempfile.TemporaryDirectory(prefix="scalable-run-") as directory:
        made = Path(directory) / "exchange"
        made.touch(mode=0o600)
        yield made


def _reports(
    runs: Sequence[Path], code: int, output: Output, part: RunPart | None, *, attached: bool
) -> tuple[list[str], dict[str, Any]]:
    """Return the runs' reports, and store the script's exit code in those that it finished.
    With an ``attached`` detached cluster, whose run continues, only ``part`` of that run is shown.
    """
    reports: list[RunReport] = []
    failed: EndStatus = "cancelled" if code == _INTERRUPTED else "failed"
    for run in runs:
        try:
            if part is not None and run == part.path:
                reports.append(_report_of(part, failed if code else "completed", code))
                continue
            # Its session was closed normally.
            if code and not attached and read_run(run).status == "completed":
                amend_status(run, failed, code)
            reports.append(report_on(read_run(run)))
        except RunError as error:
            output.note(f"could not create a report of {run}: {error}")
    if not runs:
        output.note("no run was recorded")
    data = {"exit_code": code, "reports": [report.summary.to_dict() for report in reports]}
    return [str(report) for report in reports], data


def _cache_rows(run: Path, part: RunPart | None) -> Sequence[Mapping[str, Any]]:
    """Return a run's rows about cached results, or those of ``part`` if it belongs to the run."""
    if part is not None and run == part.path:
        return part.read().remembered
    return StoredRows(run, "remembered")


def _report_of(part: RunPart, status: EndStatus, code: int) -> RunReport:
    """Return the report of the script's part of a run, after its last tasks were recorded."""
    deadline = time.monotonic() + _RECORDED_S
    while not part.has_ended() and time.monotonic() < deadline:
        time.sleep(_RECORDED_S / 20)
    return report_on(part.read(status, code))
