"""Program of a scheduler: ``python -m scalable.clusters.programs.scheduler DIRECTORY``.
It runs until a stop is requested, or its idle timeout or time to live is over. Then it removes the
remaining processes, jobs and files of its cluster.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from scalable import settings
from scalable.clusters.ending import clear_away
from scalable.clusters.scheduler_services import SchedulerServices
from scalable.clusters.specs import keeping_of, stored_spec
from scalable.dask_compat.scheduler import keep_logs
from scalable.harmless import log_to_stderr
from scalable.model import ClusterRecord, DeploymentSpec
from scalable.model.cache_settings import CacheSettings
from scalable.protocol.addresses import LOOPBACK
from scalable.protocol.code import in_image
from scalable.protocol.credentials import security_of
from scalable.protocol.importing import Importer
from scalable.protocol.operations import STORAGE
from scalable.providers.registry import provider_traits
from scalable.records import ClusterDirectory
from scalable.runs.directory import RunDirectory
from scalable.runs.streams import LOGS
from scalable.scaling.waterfall import Waterfall
from scalable.scheduler.controller import Controller
from scalable.scheduler.limits import Lifetime
from scalable.scheduler.managers import Demand
from scalable.scheduler.pool_scheduler import PoolScheduler

# Garbage collection -------------------------------------------------------------------------------


#: Maximum share of the time that full garbage collections take.
SHARE = 1 / 2000
#: Threshold with which Python starts no full collection.
NEVER = 10**9


class SeldomCollections:
    """Limits full garbage collections to a small share of the time, with any number of objects.
    A full collection visits every object, half a million per second: 2 s with 5,000 workers. Python
    starts one after a growth by a quarter. Here the next one waits for ``1 / SHARE`` times the
    duration of the last. Objects without cycles are still freed at once.
    """

    def __init__(self) -> None:
        first, second, self._third = (3 * each for each in gc.get_threshold())
        self._younger = first, second
        self._began = self._due_at = 0.0

    def begin(self) -> None:
        """Exempt existing objects from collection, and triple Python's thresholds, as Dask does."""
        gc.set_threshold(*self._younger, self._third)
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self.collects)

    def collects(self, phase: str, info: Mapping[str, int]) -> None:
        """Handle the start or stop of a collection (a callback of Python)."""
        now = time.monotonic()
        if info["generation"] != 2:
            if phase == "stop" and now >= self._due_at:
                gc.set_threshold(*self._younger, self._third)
        elif phase == "start":
            self._began = now
        else:
            took_s = now - self._began
            self._due_at = now + took_s / SHARE
            gc.set_threshold(*self._younger, NEVER)
            logger.debug("a full collection took %.3f s", took_s)


logger = logging.getLogger("scalable.clusters.programs")

DEFAULT_SPILL_AFTER_S = 300.0
#: Number of ports to try if the port of the manifest is taken.
PORTS_TRIED = 200

#: Prefix of the stop reason if somebody has stopped the scheduler with a signal.
STRUCK = "its scheduler got "

#: Coroutine function that runs next to a scheduler: ``beside(controller, close)``.
Beside = Callable[[Controller, Callable[[], None]], Coroutine[Any, Any, None]]


async def serve(
    directory: ClusterDirectory,
    listening: Mapping[str, Any] | None = None,
    beside: Beside | None = None,
) -> str:
    """Run the scheduler of a cluster until it stops, and return the reason.
    ``listening`` has Dask's arguments for host and port, by default the target's. The coroutine
    ``beside`` is cancelled when the scheduler has stopped.
    """
    record = directory.record()
    security = security_of(directory.pem())
    dashboard = record.dashboard_address
    spec = stored_spec(directory)
    scheduler = PoolScheduler(
        **(listening or _listening(spec)),
        protocol="tls://",
        security=security,
        dashboard=bool(dashboard),
        dashboard_address=dashboard,
        http_token=directory.token(),
    )
    await scheduler
    keep_logs(scheduler, logging.getLogger("scalable"))
    run = _open_run(directory, record)
    services = SchedulerServices(record, directory, run)
    services.describe(scheduler)
    in_job = spec.options.get("scheduler") == "job"
    walltime_s = spec.walltime_s if in_job else None
    controller, close = _controlled(scheduler, record, services, walltime_s)
    services.show_overviews(controller)
    scheduler.set_metadata(keys=[STORAGE], value=spec.storage_url)
    keeping = keeping_of(spec, None if run is None else run.path)
    here = provider_traits(spec.provider_name).on_this_machine
    scheduler.remembering = CacheSettings.of(spec, keeping, images_here=here).to_message()
    scheduler.retrying.deployment = spec
    services.count_costs(controller, spec)
    services.follow_load(controller)
    _announce(services, directory, scheduler, run)
    services.show_status(controller)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, controller.end, f"{STRUCK}{number.name}")
    SeldomCollections().begin()
    running = None if beside is None else asyncio.create_task(beside(controller, close))
    await scheduler.finished()
    if running is not None:
        running.cancel()
        await asyncio.wait([running])
    services.stop_status()
    services.stop_recorder()
    if run is not None:
        run.close("completed")
    return controller.ending or "its scheduler was closed"


def _controlled(
    scheduler: PoolScheduler,
    record: ClusterRecord,
    services: SchedulerServices,
    walltime_s: float | None,
) -> tuple[Controller, Callable[[], None]]:
    """Add recorder and controller to a scheduler. Return the controller and a close function."""
    spill_after_s = record.spill_after_s or DEFAULT_SPILL_AFTER_S
    by_price = record.manager_policy == "cheapest"
    demand = Demand(Waterfall(spill_after_s, by_price=by_price))
    closing: list[asyncio.Task[Any]] = []

    def close() -> None:
        if not closing:
            closing.append(asyncio.ensure_future(scheduler.close()))

    controller = Controller(
        scheduler,
        demand,
        lifetime=Lifetime(
            record.idle_timeout_s, record.time_to_live_s, record.manager_grace_s, walltime_s
        ),
        close_with=close,
        expected=len(record.managers),
    )
    recorder = services.start_recorder(scheduler)
    if recorder is not None:
        controller.event_listeners.append(recorder.event)
    demand.listeners.append(services.scaled)
    for tag, count in record.wanted.items():
        demand.want(tag, count, before=0, reason="scale", source="plan")
    scheduler.add_plugin(controller)
    return controller, close


def _listening(spec: DeploymentSpec) -> dict[str, Any]:
    """Return the host, port or interface to listen on, as arguments of Dask's scheduler."""
    interface = spec.options.get("interface")
    if provider_traits(spec.provider_name).on_this_machine and not interface:
        return {"host": LOOPBACK, "port": 0}
    # The default port is left to a scheduler in the user's process, which may run here as well.
    written = "scheduler_port" in spec.written_options
    port = spec.options["scheduler_port"] if written else 0
    listening = {"port": port, "ports_tried": PORTS_TRIED}
    return listening | ({"interface": interface} if interface else {})


def _open_run(directory: ClusterDirectory, record: ClusterRecord) -> RunDirectory | None:
    if not settings.telemetry_enabled():
        return None
    return RunDirectory.create(
        record.project,
        record.target,
        manifest_yaml=directory.manifest_path().read_text(encoding="utf-8"),
        manifest_lock=record.lock,
        plan=directory.plan(),
        runs_dir=Path(record.runs_dir) if record.runs_dir else None,
        provider=record.provider,
    )


def _announce(
    services: SchedulerServices,
    directory: ClusterDirectory,
    scheduler: Any,
    run: RunDirectory | None,
) -> None:
    asked = directory.record().log_dir
    logs = directory.logs_dir / "workers" if run is None else run.path / LOGS
    services.announce(
        scheduler.contact_address or scheduler.address,
        dashboard=scheduler.live_page or None,
        log_dir=Path(asked) if asked else logs,
    )


def main() -> None:
    """Run the scheduler until it stops, then remove the remains of its cluster.
    If another program such as scancel has stopped it, the failed cluster's files are kept.
    """
    log_to_stderr()
    directory = ClusterDirectory(Path(sys.argv[1]))
    # The scheduler also unpickles objects of the workflow's modules.
    sys.path.extend(entry for entry in directory.record().sys_path if entry not in sys.path)
    Importer(in_image("the scheduler")).install()
    reason = asyncio.run(serve(directory))
    logger.info("stopped: %s", reason)
    failed = reason.startswith(STRUCK) and not _is_deleted(directory)
    if failed:
        text = f"{reason} from outside; its logs are in {directory.logs_dir}"
        directory.write_status({**(directory.status() or {}), "ended": text})
    clear_away(directory, leave_alone=("scheduler",), keep_files=failed)


def _is_deleted(directory: ClusterDirectory) -> bool:
    try:
        return directory.record().stage == "deleting"
    except FileNotFoundError:
        return True


if __name__ == "__main__":
    main()
