"""``scalable simulate``."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from scalable import settings
from scalable.cli.options import manifest_argument, output_options, target_option
from scalable.cli.output import VERSION, Display, Output, Result
from scalable.errors import PlanError, RunError, ScalableError

if TYPE_CHECKING:
    from scalable.scaling.pool_policy import PoolPolicy
    from scalable.scaling.task_model import TaskModel
    from scalable.simulation.reference import Reference
    from scalable.simulation.result import SimulationResult, Startup
    from scalable.simulation.rules import Rule
    from scalable.simulation.workloads import Workload
    from scalable.spec.ordering import Order

_HEADER = ("policy", "time", "cost", "changes", "most workers", "beside clairvoyant")
#: Default maximum of a worker's start that is paid for, in seconds.
_BILLED_S = 60.0
#: Maximum number of times that a policy looks at the pools in about the time of the best schedule;
#: each look costs time.
_LOOKS = 20_000
#: Seconds after which the progress of the simulations is shown.
_QUIET_S = 2.0


class Duration(click.ParamType[float]):
    """A length of time such as 90, 10min or 1h; its value is seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse it."""
        from scalable.units import parse_duration

        try:
            return parse_duration(value)  # type: ignore[arg-type]
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Progress:
    """Progress of several simulations of one workload."""

    def __init__(self, display: Display, calls: int) -> None:
        self._display, self._calls = display, calls
        self._began = time.monotonic()
        self._simulated = ""

    def begin(self, simulated: str) -> None:
        """Begin a simulation with this name."""
        self._simulated = simulated

    def __call__(self, share: float) -> None:
        """Show the share of calls that have ended; nothing if the simulations end soon."""
        elapsed_s = time.monotonic() - self._began
        if elapsed_s >= _QUIET_S:
            ended = f"{int(100 * share)} % of {self._calls} calls have ended"
            self._display.tell(elapsed_s, f"policy {self._simulated}: {ended}")


class _Manner(NamedTuple):
    """Policies to simulate, the order of their calls, the seed, and the display."""

    names: list[str]
    order: Order
    seed: int
    progress: _Progress

    def simulations(self) -> Iterator[tuple[str, Rule, Order]]:
        """Iterate over the policies with their names, rules and orders."""
        from scalable.simulation.rules import RULES

        for number, name in enumerate(self.names, 1):
            self.progress.begin(f"{name} ({number} of {len(self.names)})")
            rule = RULES[name]
            # Other systems have no lengths of calls to order them by.
            yield name, rule, self.order if rule.order == "critical-path" else rule.order


@click.command()
@manifest_argument
@target_option("The target whose components and tasks are replayed.")
@click.option("--run", "run_id", metavar="ID", help="Replay a recorded run (latest: the last run).")
@click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Directory of the runs; by default SCALABLE_RUNS_DIR, then .scalable/runs.",
)
@click.option(
    "--workflow",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Replay a workflow's trace in WfFormat 1.5 (wfcommons.org), instead of a manifest.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Rule that sizes the pools; can be repeated. By default scalable and dask.",
)
@click.option(
    "--startup",
    type=Duration(),
    default="1s",
    show_default=True,
    help="Time that a worker takes to start; each takes 0.8 to 1.3 times that.",
)
@click.option(
    "--billed-startup",
    type=Duration(),
    help="Part of the start that is paid for; by default all of it, up to a minute.",
)
@click.option(
    "--maximum",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Maximum number of workers of a pool without bounds in the manifest.",
)
@click.option(
    "--order",
    type=click.Choice(["critical-path", "submitted"]),
    default="critical-path",
    show_default=True,
    help="Order of the waiting calls of a graph under the policies of this project: the call with "
    "the longest remaining path first, or first come, first served as under the other rules.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the random start times."
)
@output_options
def command(  # noqa: PLR0913 - what users may give
    manifest: Path | None,
    target: str | None,
    *,
    run_id: str | None,
    runs_dir: Path | None,
    workflow: Path | None,
    policies: tuple[str, ...],
    startup: float,
    billed_startup: float | None,
    maximum: int,
    order: Order,
    seed: int,
    output: Output,
) -> int:
    """Replay work on simulated pools to compare policies.

    Nothing is started. The time is that until the last call has ended or, where calls arrived over
    time, the mean from a call's arrival to its end. The cost is in paid worker-seconds.

    Simulations that take longer show on standard error which policy runs and how many calls have
    ended.
    """
    from scalable.simulation.result import Startup
    from scalable.simulation.rules import RULES

    if sum(given is not None for given in (manifest, run_id, workflow)) > 1:
        raise click.UsageError("a manifest, --run and --workflow exclude each other; give one")
    names = list(dict.fromkeys(name.lower() for name in policies)) or ["scalable", "dask"]
    unknown = [name for name in names if name not in RULES]
    if unknown:
        raise click.UsageError(f"unknown policy {unknown[0]!r}; known policies: {', '.join(RULES)}")
    billed = min(startup, _BILLED_S) if billed_startup is None else min(billed_startup, startup)
    if workflow is not None:
        work = _of_workflow(workflow, maximum)
    elif run_id is not None:
        work = _of_run((runs_dir or settings.runs_dir()).absolute(), run_id, maximum)
    else:
        work = _of_manifest(manifest, target, maximum)
    try:
        with output.display() as display:
            manner = _Manner(names, order, seed, _Progress(display, len(work.calls)))
            result = _compared(work, manner, Startup(startup, billed))
        output.show(result)
    except (ValueError, ArithmeticError) as error:
        raise PlanError(f"no policy can be simulated: {error}") from error
    return 0


def _of_workflow(path: Path, maximum: int) -> Workload:
    from scalable.simulation.workloads import Terms, of_wfformat

    try:
        return of_wfformat(json.loads(path.read_bytes()), {"workers": Terms(0, maximum)})
    except OSError as error:
        raise ScalableError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ScalableError(f"{path}: {error}", hint="a trace in WfFormat 1.5 is needed") from error


def _of_run(runs_dir: Path, run_id: str, maximum: int) -> Workload:
    from scalable.simulation.workloads import Terms, of_run
    from scalable.telemetry import each_call, find_run, read_run

    record = read_run(find_run(runs_dir, run_id))
    tags = dict.fromkeys(str(row["tag"]) for row in record.tasks if row.get("tag"))
    try:
        terms = {tag: Terms(0, maximum) for tag in tags}
        return of_run(record.path.name, each_call(record.tasks), terms)
    except ValueError as error:
        raise RunError(str(error), hint="a run with calls that had a tag is needed") from error


def _of_manifest(manifest: Path | None, target: str | None, maximum: int) -> Workload:
    from scalable.forecasting import with_history
    from scalable.planning import total_maximum
    from scalable.session.request import Request
    from scalable.simulation.workloads import of_spec

    path = settings.manifest_path(manifest)
    spec = with_history(Request.read(path, target).spec)
    try:
        return of_spec(spec, maximum, total_maximum(spec))
    except ValueError as error:
        hint = "each task needs its count and duration, in the manifest or from an earlier run"
        raise PlanError(f"{path}: {error}", hint=hint) from error


def _known(work: Workload) -> TaskModel:
    """Return what a policy knows in advance: a manifest's expected durations, nothing of traces."""
    from scalable.scaling.task_model import Expectation, TaskModel

    expected = {
        (call.kind.component, call.kind.task): Expectation(call.duration_s) for call in work.calls
    }
    return TaskModel(expected if work.expected else None)


def _compared(work: Workload, manner: _Manner, startup: Startup) -> Result:
    from scalable.report.table import table
    from scalable.scaling.looks import look_every_s
    from scalable.simulation.reference import clairvoyant
    from scalable.simulation.simulator import simulate
    from scalable.units import counted, format_duration

    best = clairvoyant(work, startup)
    reach = max(best.time_s, *(call.arrival_s for call in work.calls))
    rows, values = [], {}
    for name, rule, order in manner.simulations():
        outcome = simulate(
            work,
            _each(rule.make),
            startup,
            _known(work),
            every_s=max(rule.every_s or look_every_s(startup.delay_s), reach / _LOOKS),
            seed=manner.seed,
            order=order,
            progress=manner.progress,
        )
        score = math.sqrt(outcome.time_s * outcome.cost / best.product) if best.product else None
        rows.append(
            (
                name,
                format_duration(outcome.time_s),
                f"{outcome.cost:.0f}",
                str(len(outcome.changes)),
                str(outcome.most_workers),
                "-" if score is None else f"{score:.2f}",
            )
        )
        values[name] = _value(outcome, score)
    rows.append(("clairvoyant", format_duration(best.time_s), f"{best.cost:.0f}", "-", "-", "1.00"))
    what = "mean time from arrival to end" if work.stream else "time until the last call has ended"
    calls, pools = counted(len(work.calls), "call"), counted(len(work.pools), "pool")
    starts = format_duration(startup.delay_s)
    lines = [
        f"{work.name}: {calls} in {pools}, workers start in {starts}; {what}",
        "",
        *table(_HEADER, rows),
    ]
    data = {
        "version": VERSION,
        "workload": work.name,
        "calls": len(work.calls),
        "stream": work.stream,
        "startup_s": startup.delay_s,
        "billed_startup_s": startup.billed_s,
        "order": manner.order,
        "seed": manner.seed,
        "clairvoyant": _reference(best),
        "policies": values,
    }
    return Result("\n".join(lines) + "\n", data)


def _each(make: Callable[[], PoolPolicy]) -> Callable[[str], PoolPolicy]:
    return lambda _: make()


def _reference(reference: Reference) -> Mapping[str, float]:
    return {"time_s": reference.time_s, "cost": reference.cost}


def _value(outcome: SimulationResult, score: float | None) -> Mapping[str, Any]:
    return {
        "time_s": outcome.time_s,
        "makespan_s": outcome.makespan_s,
        "sojourn_s": outcome.sojourn_s,
        "cost": outcome.cost,
        "score": score,
        "decisions": [change._asdict() for change in outcome.changes],
        "workers": {pool: [list(step) for step in line] for pool, line in outcome.workers.items()},
    }
