"""``scalable up``."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from scalable.cli import clusters, plans
from scalable.cli.options import DURATION, Command, confirm, manifest_argument, target_option
from scalable.cli.output import Output, Result
from scalable.clusters import discovery
from scalable.clusters.control import scale, set_budget
from scalable.clusters.record import default_name
from scalable.clusters.resuming import restart_managers, running_cluster
from scalable.clusters.services import READY_TIMEOUT_S, wait_for_managers, wait_until_ready
from scalable.errors import ClusterError, NameTakenError, ScalableError, UnknownClusterError
from scalable.model import ClusterStatus, Plan, names
from scalable.protocol.addresses import listen_address
from scalable.providers.registry import provider_traits
from scalable.records import ClusterDirectory, find, status_of
from scalable.session.request import Request
from scalable.units import format_duration

if TYPE_CHECKING:
    from scalable.clusters.creation import DetachOptions


@click.command(cls=Command)
@manifest_argument
@target_option("The target to start it on; by default SCALABLE_TARGET, local, or the only one.")
@click.option("--name", metavar="NAME", help="Name of the cluster. Default: PROJECT-TARGET.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
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
@plans.started_plan_options
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
    asked: plans.AskedPlan,
    output: Output,
) -> Result:
    """Start a cluster that keeps running after this command.
    A running cluster of the same name is scaled to the plan's counts.
    """
    from scalable.clusters.creation import DetachOptions

    if name is not None:
        names.CLUSTER.require(name)
    request, plan = asked.read(manifest, target)
    name = name or default_name(request.spec)
    options = DetachOptions(
        name=name,
        idle_timeout_s=idle_timeout,
        time_to_live_s=ttl,
        workers=not no_workers,
        processes=processes,
        dashboard_address=dashboard,
        budget=asked.spending_limit(plan),
    )
    if plan is None:
        plan = asked.make(request, output, detached=True)
    for warning in request.validate().warnings:
        output.note(warning.render())
    wanted = _Wanted(request, plan, options, output, yes=yes, wait=not no_wait)
    running = running_cluster(name)
    if running is None:
        wanted.confirm()
        try:
            return _shown(wanted.start(name), changed=True)
        except NameTakenError:
            running = running_cluster(name)  # another `up` was faster
            if running is None:
                raise
    return wanted.change(running)


@dataclass(frozen=True)
class _Wanted:
    """A cluster that the user wants, which may run already."""

    request: Request
    plan: Plan
    options: DetachOptions
    output: Output
    #: Do not ask.
    yes: bool
    #: Return when its workers have started.
    wait: bool

    def confirm(self) -> None:
        """Show what would start, and ask if a target has a price or a queue."""
        from scalable.clusters.creation import lifetimes
        from scalable.runs.report.plans import render_plan
        from scalable.session.detached import requested_managers

        spec, plan = self.request.spec, self.plan
        managers = requested_managers(self.request, self.options)
        idle_s, live_s = lifetimes(spec, self.options)
        stops = f"Stops:  after {format_duration(idle_s)} without work"
        if live_s is not None:
            stops += f", after {format_duration(live_s)} at the latest"
        lines = [render_plan(plan), stops]
        for manager in spec.managers:
            by_price = spec.manager_policy == "cheapest"
            words = ["by price" if by_price else f"priority {manager.priority}"]
            words += [f"{tag} at most {n}" for tag, n in manager.limits.items()]
            lines.append(f"Manager on {manager.target}: {', '.join(words)}")
        self.output.note("\n".join(lines))
        places = {one.target_name: one for one in (spec, *(m.spec for m in managers.values()))}
        if any(
            provider_traits(place.provider_name).asks_first
            or plans.costs_money(place)
            or place.price_per_core_hour is not None
            or place.prices
            for place in places.values()
        ):
            costs = plans.said_of_managers(list(places.values())[1:])
            if plan.cost_estimate is not None or plans.costs_money(spec, plan):
                costs.insert(0, plans.said_cost(plan, idle_s=idle_s))
            question = f"Start cluster {self.options.name!r} on {self.request.target!r}?"
            confirm(" ".join([*costs, question]), yes=self.yes)

    def start(self, name: str) -> ClusterStatus:
        """Start the cluster, and warn that it keeps running if its start is interrupted."""
        from scalable.session.detached import create_cluster

        try:
            directory = create_cluster(self.request, self.plan, self.options)
            status = self._ready(directory, workers=self.options.workers, wait=self.wait)
        except NameTakenError:
            raise
        except (KeyboardInterrupt, ScalableError):
            with suppress(UnknownClusterError):
                failed = status_of(find(name), time.time()).state == "failed"
                self.output.warn(
                    f"cluster {name!r} {'has failed' if failed else 'is still starting'}: see "
                    f"`scalable status {name}`, or delete it with `scalable down {name}`"
                )
            raise
        if self.options.dashboard_address and status.dashboard:
            asked = listen_address(self.options.dashboard_address).port
            found = urlsplit(status.dashboard).port
            if asked not in (0, found):
                self.output.warn(f"port {asked} is in use: the dashboard listens on port {found}")
        return status

    def change(self, directory: ClusterDirectory) -> Result:
        """Scale a running cluster to the plan's counts."""
        plan, status = self.plan, self._adopt(directory)
        # A count would stop a pool from following its load.
        now = {tag: one.wanted for tag, one in status.pools.items() if tag not in status.adaptive}
        counts = plan.scale_plan.workers_by_tag
        then = {tag: count for tag, count in counts.items() if tag not in status.adaptive}
        lines = clusters.render_changes(now, then)
        for line in lines:
            self.output.note(line)
        changed = {tag: n for tag, n in then.items() if tag in now and n != now[tag]}
        if changed:
            record = directory.record()
            places = {record.provider, *(m["provider"] for m in record.managers.values())}
            costs = plan.cost_estimate is not None
            asks = costs or any(provider_traits(place).asks_first for place in places)
            if asks and any(n > now[tag] for tag, n in changed.items()):
                money = f"{plans.said_cost(plan)} " if costs else ""
                confirm(f"{money}Change cluster {status.name!r}?", yes=self.yes)
            scale(directory.id, changed)
        elif not lines:
            self.output.note("nothing to change")
        if changed or (status.state == "starting" and self.options.workers):
            self._ready(directory, workers=True, wait=self.wait)
        return _shown(discovery.status(directory.id), changed=bool(changed))

    def _adopt(self, directory: ClusterDirectory) -> ClusterStatus:
        """Bring the managers and the budget of a running cluster, and note what it keeps."""
        from scalable.session.detached import MANIFEST_CHANGED, changes_since

        request, options, note = self.request, self.options, self.output.note
        record, target = directory.record(), request.target
        if record.target != target:
            raise ClusterError(
                f"cluster {record.name!r} runs on target {record.target!r}, not on {target!r}",
                hint=f"give another --name, or add workers from target {target!r}: scalable "
                f"manager attach {record.name} --target {target} --id {target}",
            )
        status = status_of(directory, time.time())
        if status.state in ("creating", "starting"):
            # Another `up` of this name has just started it.
            note(f"cluster {status.name!r} is {status.state}")
            self._ready(directory, workers=False)
        self._bring_managers(directory)
        if options.budget is not None:
            cost = set_budget(directory.id, options.budget)
            note(clusters.render_budget(cost, options.budget))
        status, record = status_of(directory, time.time()), directory.record()
        note(f"cluster {status.name!r} is already running ({status.state})")
        if record.lock != self.plan.manifest_lock:
            note("\n  ".join([MANIFEST_CHANGED, *changes_since(directory, request, options)]))
        limits = {
            "idle timeout": (options.idle_timeout_s, record.idle_timeout_s),
            "time to live": (options.time_to_live_s, record.time_to_live_s),
        }
        kept = [name for name, (new, its) in limits.items() if new not in (None, its)]
        if kept:
            self.output.warn(f"a running cluster keeps its {' and '.join(kept)}")
        return status

    def _bring_managers(self, directory: ClusterDirectory) -> None:
        """Start missing managers, or all managers of a cluster without any."""
        from scalable.clusters.creation import add_managers
        from scalable.session.detached import requested_managers

        if directory.record().managers:
            started = restart_managers(directory.id)
        elif self.options.workers:
            requests = requested_managers(self.request, self.options)
            add_managers(directory, requests)
            started = list(requests)
        else:
            return
        if started:
            self.output.note(f"started manager {', '.join(started)}")
            wait_for_managers(directory, started)

    def _ready(
        self, directory: ClusterDirectory, *, workers: bool, wait: bool = True
    ) -> ClusterStatus:
        """Return the status of a cluster, if ``wait`` once it answers or its workers run."""
        if not wait:
            return status_of(directory, time.time())
        with self.output.progress(lines=True) as display:
            return wait_until_ready(
                directory,
                lambda status: display.show(clusters.render_progress(status)),
                READY_TIMEOUT_S,
                workers=workers,
            )


def _shown(status: ClusterStatus, *, changed: bool) -> Result:
    text = clusters.render_status(status) + f"\nConnect with: scalable connect {status.name}\n"
    data = {"changed": changed, "cluster": status.to_dict()}
    return Result(text, data)
