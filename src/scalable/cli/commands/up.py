"""``scalable up``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalable.cli.clusters import (
    no_prices,
    render_changes,
    render_cost,
    render_progress,
    render_status,
)
from scalable.cli.options import (
    DURATION,
    Command,
    confirm,
    manifest_argument,
    target_option,
)
from scalable.cli.output import Output, Result
from scalable.cli.plans import (
    AskedPlan,
    budget_of,
    budget_option,
    costs_money,
    objective_options,
    plan_option,
    said_cost,
    said_of_managers,
)
from scalable.clusters.control import scale, set_budget
from scalable.clusters.record import default_name
from scalable.clusters.resuming import restart_managers, running_cluster
from scalable.clusters.services import READY_TIMEOUT_S, wait_for_managers, wait_until_ready
from scalable.errors import ClusterError, NameTakenError, ScalableError, UnknownClusterError
from scalable.model import ClusterStatus, DeploymentSpec, Plan, names
from scalable.providers.registry import provider_traits
from scalable.records import find, status_of
from scalable.units import format_duration

if TYPE_CHECKING:
    from scalable.clusters.creation import DetachOptions
    from scalable.records import ClusterDirectory
    from scalable.session.request import Request


@click.command(cls=Command)
@manifest_argument
@target_option("The target to start it on; by default SCALABLE_TARGET, local, or the only one.")
@click.option(
    "--name", metavar="NAME", help="Name of the cluster; by default made of project and target."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--no-wait", is_flag=True, help="Return before workers have started.")
@click.option("--no-workers", is_flag=True, help="Start only the scheduler.")
@click.option(
    "--idle-timeout", type=DURATION, help="Stop the cluster after this time without work."
)
@click.option("--ttl", type=DURATION, help="Stop the cluster at this age, even if it has work.")
@click.option("--processes", is_flag=True, help="On local targets: run each worker as a process.")
@click.option(
    "--dashboard",
    metavar="[HOST]:PORT",
    help="Serve the dashboard at this address, such as :8787; on loopback unless a host is given.",
)
@objective_options
@budget_option
@plan_option
def command(  # noqa: PLR0913 - what a user may say
    manifest: Path | None,
    target: str | None,
    *,
    name: str | None,
    yes: bool,
    no_wait: bool,
    no_workers: bool,
    idle_timeout: float | None,
    ttl: float | None,
    processes: bool,
    dashboard: str | None,
    budget: float | None,
    plan_file: Path | None,
    output: Output,
    **objective: str | None,
) -> Result:
    """Start a cluster that keeps running after this command.
    A running cluster of the same name is scaled to the plan's counts.
    """
    from scalable.clusters.creation import DetachOptions
    from scalable.session.detached import create_cluster, requested_managers

    if name is not None:
        names.CLUSTER.require(name)
    asked = AskedPlan(**objective, budget=budget, file=plan_file)
    request, plan = asked.read(manifest, target)
    options = DetachOptions(
        name=name or default_name(request.spec),
        idle_timeout_s=idle_timeout,
        time_to_live_s=ttl,
        workers=not no_workers,
        processes=processes,
        dashboard_address=dashboard,
        budget=budget if plan_file is None else budget_of(plan),
    )
    if plan is None:
        plan = asked.make(request, output, detached=True)
    for warning in request.validate().warnings:
        output.note(warning.render())
    assert options.name is not None
    running = running_cluster(options.name)
    if running is not None:
        return _change(running, request, plan, options, yes=yes, wait=not no_wait, output=output)
    managers = requested_managers(request, options)
    from scalable.runs.report.plans import render_plan

    output.note(render_plan(plan) + _outlook(request, options))
    places = {
        spec.target_name: spec for spec in (request.spec, *(m.spec for m in managers.values()))
    }
    if _asks_first(places.values()):
        confirm(_question(request, plan, options, list(places.values())[1:]), yes=yes)
    try:
        with _told_what_is_left(options.name, output):
            directory = create_cluster(request, plan, options)
            status = _wait(directory, output, wait=not no_wait, workers=not no_workers)
    except NameTakenError:
        running = running_cluster(options.name)  # another `up` was faster
        if running is None:
            raise
        return _change(running, request, plan, options, yes=yes, wait=not no_wait, output=output)
    return _shown(status, changed=True)


@contextmanager
def _told_what_is_left(name: str, output: Output) -> Iterator[None]:
    """Warn that a cluster keeps running if its start fails or is interrupted."""
    try:
        yield
    except NameTakenError:
        raise
    except (KeyboardInterrupt, ScalableError):
        with suppress(UnknownClusterError):
            find(name)
            output.warn(
                f"the start of cluster {name!r} continues: see `scalable status {name}`, "
                f"or delete it with `scalable down {name}`"
            )
        raise


def _asks_first(places: Iterable[DeploymentSpec]) -> bool:
    """Return whether the user must confirm, because a target has a price or a queue."""
    return any(
        provider_traits(s.provider_name).asks_first or costs_money(s) or _has_price(s)
        for s in places
    )


def _has_price(spec: DeploymentSpec) -> bool:
    return spec.price_per_core_hour is not None or bool(spec.prices)


def _question(
    request: Request, plan: Plan, options: DetachOptions, others: Sequence[DeploymentSpec]
) -> str:
    """Return the question to confirm a cluster's start, with its cost if known."""
    from scalable.clusters.creation import lifetimes

    cost = ""
    if plan.cost_estimate is not None or costs_money(request.spec, plan):
        cost = said_cost(plan, idle_s=lifetimes(request.spec, options)[0]) + " "
    managers = said_of_managers(others)
    return (
        f"{cost}{managers}{' ' * bool(managers)}"
        f"Start cluster {options.name!r} on {request.target!r}?"
    )


def _outlook(request: Request, options: DetachOptions) -> str:
    """Return lines about the cluster's managers and the times when it stops by itself."""
    from scalable.clusters.creation import lifetimes

    lines = [""]
    idle, live = lifetimes(request.spec, options)
    lines.append(f"Ends:   after {format_duration(idle)} without work")
    if live is not None:
        lines.append(f"        and in any case after {format_duration(live)}")
    by_price = request.spec.manager_policy == "cheapest"
    for manager in request.spec.managers:
        limits = ", ".join(f"{tag} at most {n}" for tag, n in manager.limits.items())
        lines.append(
            f"Manager on {manager.target}: "
            + ("by price" if by_price else f"priority {manager.priority}")
            + (f", {limits}" if limits else "")
        )
    return "\n".join(lines)


def _change(
    directory: ClusterDirectory,
    request: Request,
    plan: Plan,
    options: DetachOptions,
    *,
    yes: bool,
    wait: bool,
    output: Output,
) -> Result:
    from scalable.session.detached import MANIFEST_CHANGED, changes_since

    _refuse_other_target(directory, request)
    status = status_of(directory, time.time())
    if status.state in ("creating", "starting"):
        # Another `up` of this name has just started it.
        output.note(f"cluster {status.name!r} is {status.state}")
        status = _wait(directory, output, wait=True, workers=False)
    _bring_managers(directory, request, options, output)
    if options.budget is not None:
        told = set_budget(directory.id, options.budget)
        output.note("\n".join(render_cost(told)) if told else no_prices(options.budget))
    status = status_of(directory, time.time())
    now = {tag: pool.wanted for tag, pool in status.pools.items()}
    then = dict(plan.scale_plan.workers_by_tag)
    output.note(f"cluster {status.name!r} is already running ({status.state})")
    if directory.record().lock != plan.manifest_lock:
        output.note(MANIFEST_CHANGED)
        for line in changes_since(directory, request, options):
            output.note(f"  {line}")
    kept = _kept_limits(directory, options)
    if kept:
        output.warn(f"a running cluster keeps its {' and '.join(kept)}")
    # A count would stop a pool from following its load.
    then = {tag: count for tag, count in then.items() if tag not in status.adaptive}
    lines = render_changes({tag: now[tag] for tag in now if tag not in status.adaptive}, then)
    for line in lines:
        output.note(line)
    counts = {t: n for t, n in then.items() if t in now and n != now[t]}
    if counts:
        record = directory.record()
        places = {record.provider, *(m["provider"] for m in record.managers.values())}
        asks = any(provider_traits(place).asks_first for place in places)
        costs = asks or plan.cost_estimate is not None
        if costs and any(n > now[tag] for tag, n in counts.items()):
            money = "" if plan.cost_estimate is None else f"{said_cost(plan)} "
            confirm(f"{money}Change cluster {status.name!r}?", yes=yes)
        scale(directory.id, counts)
        _wait(directory, output, wait=wait, workers=True)
    else:
        if not lines:
            output.note("nothing to change")
        if status.state == "starting" and options.workers:
            _wait(directory, output, wait=wait, workers=True)
    return _shown(status_of(directory, time.time()), changed=bool(counts))


def _kept_limits(directory: ClusterDirectory, options: DetachOptions) -> list[str]:
    """Return names of the requested limits that a running cluster does not take."""
    record = directory.record()
    asked = {
        "idle timeout": (options.idle_timeout_s, record.idle_timeout_s),
        "time to live": (options.time_to_live_s, record.time_to_live_s),
    }
    return [name for name, (new, now) in asked.items() if new is not None and new != now]


def _refuse_other_target(directory: ClusterDirectory, request: Request) -> None:
    record = directory.record()
    if record.target != request.target:
        raise ClusterError(
            f"cluster {record.name!r} runs on target {record.target!r}, not on {request.target!r}",
            hint="give another --name, or add workers from target "
            f"{request.target!r}: scalable manager attach {record.name} --target "
            f"{request.target} --id {request.target}",
        )


def _bring_managers(
    directory: ClusterDirectory, request: Request, options: DetachOptions, output: Output
) -> None:
    """Start missing managers, or all managers of a cluster without any."""
    from scalable.clusters.creation import add_managers
    from scalable.session.detached import requested_managers

    if directory.record().managers:
        started = restart_managers(directory.id)
    elif options.workers:
        requests = requested_managers(request, options)
        add_managers(directory, requests)
        started = list(requests)
    else:
        return
    if started:
        output.note(f"started manager {', '.join(started)}")
        wait_for_managers(directory, started)


def _wait(
    directory: ClusterDirectory, output: Output, *, wait: bool, workers: bool
) -> ClusterStatus:
    if not wait:
        return status_of(directory, time.time())
    began, show = time.monotonic(), output.display()
    return wait_until_ready(
        directory,
        lambda status: show(time.monotonic() - began, render_progress(status)),
        READY_TIMEOUT_S,
        workers=workers,
    )


def _shown(status: ClusterStatus, *, changed: bool) -> Result:
    text = render_status(status) + f"\nConnect with: scalable connect {status.name}\n"
    data = {"changed": changed, "cluster": status.to_dict()}
    return Result(text, data)
