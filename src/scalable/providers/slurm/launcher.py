"""Launcher of Slurm jobs. A unit is one job with one worker, an element of a job array.
One ``squeue`` command returns the states of all units.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scalable.containers import check_image_file, prove
from scalable.errors import ClusterError, ProviderError
from scalable.files import private_directory, read_tail, write_private
from scalable.liveness import identify_process
from scalable.manager.launcher import (
    SUCCESSOR,
    LimitReachedError,
    Observation,
    UnitName,
    UnitState,
)
from scalable.manager.pools import ManagerSite, Pool, config_path
from scalable.model import ComponentSpec, DeploymentSpec
from scalable.model.deployment import walltime_of
from scalable.providers.slurm.api import Slurm
from scalable.providers.slurm.queue import (
    FROM_OUTSIDE,
    OUT_OF_MEMORY,
    SUSPENDED,
    WALLTIME_OVER,
    Element,
    JobState,
    comment,
    number_of,
    pool_name,
    said_by,
    worker_of,
)
from scalable.providers.slurm.render import array_indices, batch_script
from scalable.providers.slurm.worker import JobRequest, container_of, file_name, job_template
from scalable.records.directory import OWNER
from scalable.units import parse_port_range
from scalable.worker.config import WorkerConfig, security_fields, serialized_config
from scalable.worker.process_worker import ProcessWorker

logger = logging.getLogger("scalable.providers.slurm")

FASTEST_POLL_S = 1.0
SLOWEST_POLL_S = 15.0
BACKOFF = 1.5
#: Seconds for which a submitted job may be missing from the queue.
UNSEEN_GRACE_S = 15.0
STOP_TIMEOUT_S = 90.0
#: States of a job that squeue does not list. ``UNSEEN``: it is cancelled anyway. ``NEVER_RAN``: a
#: queued array element that was cancelled leaves no trace.
UNSEEN = "UNSEEN"
NEVER_RAN = "NEVER_RAN"


@dataclass(frozen=True)
class JobPool:
    """Jobs of one pool."""

    #: Name of the jobs.
    name: str
    #: Prefix of the workers' names. A number follows.
    prefix: str
    #: Takes the number of the worker at array index 0, and returns the batch script.
    script: Callable[[int], str]
    #: Takes a job and an array index, and returns the path of the element's log.
    log: Callable[[int, int | None], str]


@dataclass
class _Unit:
    pool: JobPool
    job: int
    index: int | None
    submitted_at: float
    element: Element | None = None
    seen_at: float = 0.0

    @property
    def job_id(self) -> str:
        return f"{self.job}" if self.index is None else f"{self.job}_{self.index}"


class SlurmLauncher:
    """Launcher of units, one worker each, as elements of job arrays."""

    def __init__(
        self,
        slurm: Slurm,
        pools: Mapping[str, JobPool],
        directory: Path,
        at_most: int | None = None,
    ) -> None:
        self._slurm = slurm
        #: Maximum number of jobs that wait or run, or None.
        self._at_most = at_most
        self._pools = pools
        self._directory = directory
        self._units: dict[UnitName, _Unit] = {}
        self._max_array_size: int | None = None
        self._polling: asyncio.Task[None] | None = None
        self._poll_at = 0.0
        self._interval = FASTEST_POLL_S
        self._silent_since: float | None = None
        # Units whose request got no answer. Their jobs may be in the queue anyway.
        self._unanswered: set[UnitName] = set()
        self._requests: dict[asyncio.Future[None], frozenset[UnitName]] = {}

    def job_of(self, name: UnitName) -> str | None:
        """Return the id of a unit's job, such as ``12_3``, or None for an unknown unit."""
        unit = self._units.get(name)
        return None if unit is None else unit.job_id

    # Launching ----------------------------------------------------------------------------------

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        """Submit the units as one job array, or as several if Slurm limits array sizes."""
        names = [name for name in entries if name not in self._units]
        if not names:
            return
        taken = self._units.keys() | set().union(*self._requests.values())
        more = sum(SUCCESSOR not in entries[name] for name in names)
        if self._at_most is not None and more and len(taken) + more > self._at_most:
            raise LimitReachedError(f"at_most allows {self._at_most} jobs of this target at once")
        pool = self._pools[entries[names[0]]["pool"]]
        request = asyncio.ensure_future(self._request(pool, names))
        self._requests[request] = frozenset(names)
        request.add_done_callback(self._forget_request)
        # A cancelled sbatch may submit jobs anyway, and stop() must find them.
        await asyncio.shield(request)

    def _forget_request(self, request: asyncio.Future[None]) -> None:
        del self._requests[request]
        if not request.cancelled():
            request.exception()  # retrieved, because the caller may have been cancelled

    async def _request(self, pool: JobPool, names: Sequence[UnitName]) -> None:
        numbers = {int(str(name).removeprefix(pool.prefix)): name for name in names}
        if self._max_array_size is None:
            self._max_array_size = await self._slurm.max_array_size()
        if self._silent_since is not None or self._unanswered.intersection(names):
            await self._find_unanswered(pool, numbers)
        size = self._max_array_size
        by_first: dict[int, list[int]] = {}
        for number in numbers:
            first = number if size < 2 else number - number % size
            by_first.setdefault(first, []).append(number)
        for first, members in by_first.items():
            await self._submit(pool, first, {n: numbers[n] for n in members}, array=size >= 2)
        self._soon()

    async def _submit(
        self, pool: JobPool, first: int, numbers: Mapping[int, UnitName], *, array: bool
    ) -> None:
        indices = array_indices([number - first for number in numbers]) if array else None
        said = comment(pool.name, self._directory, first=first, prefix=pool.prefix)
        self._unanswered.update(numbers.values())
        try:
            job = await self._slurm.submit(pool.script(first), array=indices, comment=said)
        except ProviderError as error:
            if isinstance(error, LimitReachedError) or not error.transient:
                self._unanswered.difference_update(numbers.values())
            raise
        self._unanswered.difference_update(numbers.values())
        now = time.monotonic()
        logger.debug("job %d: submitted for units %s", job, list(numbers.values()))
        for number, name in numbers.items():
            index = number - first if array else None
            self._take(name, _Unit(pool, job, index, submitted_at=now))

    async def _find_unanswered(self, pool: JobPool, numbers: dict[int, UnitName]) -> None:
        """Adopt the jobs of an earlier request with a lost answer."""
        for element in await self._slurm.queue():
            ours = said_by(element).get("prefix", pool.prefix) == pool.prefix
            number = number_of(element)
            ended = element.state is JobState.ENDED
            if element.name == pool.name and ours and number in numbers and not ended:
                name = numbers.pop(number)
                self._unanswered.discard(name)
                self._take(name, _Unit(pool, element.job, element.index, time.monotonic()))

    async def adopt(self) -> dict[UnitName, str]:
        """Adopt jobs that an earlier process of this manager left in the queue."""
        tags = {pool.name: tag for tag, pool in self._pools.items()}
        adopted: dict[UnitName, str] = {}
        nameless = 0
        began = time.monotonic()
        for element in await self._slurm.queue():
            tag = tags.get(element.name)
            owner = said_by(element).get("directory", str(self._directory))
            if tag is None or owner != str(self._directory) or element.state is JobState.ENDED:
                continue
            name = worker_of(element)
            if name is None:
                nameless += 1
            elif name not in self._units:
                unit = _Unit(self._pools[tag], element.job, element.index, began, element, began)
                self._take(name, unit)
                adopted[name] = tag
        if nameless:
            logger.warning(
                "%d jobs of an earlier process do not contain the names of their workers: their "
                "comments were changed. They are replaced, and exit by themselves once they run",
                nameless,
            )
        return adopted

    def _take(self, name: UnitName, unit: _Unit) -> None:
        self._units[name] = unit
        # The link leads from the worker's name to its output after the unit is removed.
        log = Path(unit.pool.log(unit.job, unit.index))
        with suppress(OSError):
            (log.parent / f"{file_name(str(name))}.log").symlink_to(log.name)

    # Looking ------------------------------------------------------------------------------------

    def observe(self) -> dict[UnitName, Observation]:
        """Return the unit states of the last poll, and start the next poll if it is due."""
        now = time.monotonic()
        idle = self._polling is None or self._polling.done()
        if self._units and idle and now >= self._poll_at:
            self._polling = asyncio.create_task(self._poll(), name="squeue")
        return {name: self._observation(unit, now) for name, unit in self._units.items()}

    def _observation(self, unit: _Unit, now: float) -> Observation:
        element = unit.element
        if element is None:
            return Observation(UnitState.PENDING, "submitted")
        if element.state is JobState.WAITING:
            return Observation(UnitState.PENDING, element.reason)
        if element.raw_state in SUSPENDED:
            reason = f"suspended ({element.raw_state}): it continues once it is resumed"
            return Observation(UnitState.PENDING, reason, suspended=True)
        if element.state is JobState.THERE:
            left = element.left_s
            # The reason of a job's exit is unknown while the job is completing.
            at = float("-inf") if element.raw_state == "COMPLETING" else unit.seen_at
            return Observation(
                UnitState.RUNNING,
                left_s=None if left is None else left - (now - unit.seen_at),
                at=at,
            )
        state = element.raw_state.partition(" ")[0]
        left_s = 0.0 if state in WALLTIME_OVER else None
        outside = state == NEVER_RAN or state in FROM_OUTSIDE
        return Observation(
            UnitState.ENDED,
            element.reason,
            left_s,
            from_outside=outside,
            out_of_memory=state == OUT_OF_MEMORY,
        )

    def look_soon(self) -> None:
        """Schedule the next poll of Slurm within a second."""
        self._soon()

    async def _poll(self) -> None:
        began = time.monotonic()
        try:
            elements = await self._slurm.queue()
        except ProviderError as error:
            self._no_answer(error)
            return
        now = time.monotonic()
        if self._silent_since is not None:
            logger.warning("Slurm answers again after %.0f s", now - self._silent_since)
            self._silent_since = None
        by_id = {(element.job, element.index): element for element in elements}
        changed = False
        for unit in list(self._units.values()):
            element = by_id.get((unit.job, unit.index))
            if element is None and began - unit.submitted_at > UNSEEN_GRACE_S:
                element = await asyncio.to_thread(_left_the_queue, unit)
            if element is not None:
                before = unit.element
                if before is None or before.state is not element.state:
                    changed = True
                    logger.debug("job %s is %s %s", unit.job_id, element.raw_state, element.reason)
                unit.element, unit.seen_at = element, began
        self._interval = (
            FASTEST_POLL_S if changed else min(SLOWEST_POLL_S, self._interval * BACKOFF)
        )
        self._poll_at = now + self._interval

    def _no_answer(self, error: ProviderError) -> None:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            logger.warning(
                "%s; jobs keep running, and their states are read again when Slurm answers", error
            )
        self._interval = min(SLOWEST_POLL_S, self._interval * BACKOFF)
        self._poll_at = now + self._interval

    def _soon(self) -> None:
        self._interval = FASTEST_POLL_S
        self._poll_at = min(self._poll_at, time.monotonic() + FASTEST_POLL_S)

    # Ending -------------------------------------------------------------------------------------

    async def stop(self, names: Sequence[UnitName]) -> None:
        """Cancel units, and wait up to 90 s until they have stopped."""
        if late := [r for r, asked in self._requests.items() if not asked.isdisjoint(names)]:
            await asyncio.wait(late)  # Slurm's commands have a timeout
        units = {name: self._units[name] for name in names if name in self._units}
        ended = {n for n, u in units.items() if u.element is not None and _is_over(u.element)}
        remaining = {name: unit for name, unit in units.items() if name not in ended}
        deadline = time.monotonic() + STOP_TIMEOUT_S
        cancelled, pause = False, 0.2
        while remaining:
            try:
                if not cancelled:
                    logger.debug("cancelling jobs %s", [u.job_id for u in remaining.values()])
                    await self._slurm.cancel([unit.job_id for unit in remaining.values()])
                    cancelled = True
                remaining = _still_queued(remaining, await self._slurm.queue())
            except ProviderError as error:
                # Callers stop a unit only once. If this fails, its job is left in the queue.
                if not error.transient or time.monotonic() > deadline:
                    raise
            if remaining and time.monotonic() > deadline:
                shown = ", ".join(unit.job_id for unit in remaining.values())
                raise ProviderError(
                    f"jobs {shown} were cancelled but have not stopped after {STOP_TIMEOUT_S:g} s"
                )
            if remaining:
                await asyncio.sleep(pause)
                pause = min(5.0, pause * BACKOFF)
        for name in units:
            self._units.pop(name, None)

    async def cancel_unanswered(self) -> None:
        """Cancel jobs that Slurm may have accepted although its answer was lost."""
        if self._unanswered:
            ours = {pool.name for pool in self._pools.values()}
            left = [e for e in await self._slurm.queue() if e.name in ours]
            jobs = {e.job for e in left if e.state is not JobState.ENDED}
            await self._slurm.cancel([str(job) for job in jobs])
            self._unanswered.clear()

    async def logs(self, name: UnitName) -> str:
        unit = self._units.get(name)
        if unit is None:
            return ""
        return await asyncio.to_thread(read_tail, Path(unit.pool.log(unit.job, unit.index)))


def _is_over(element: Element) -> bool:
    return element.state is JobState.ENDED and element.raw_state not in (UNSEEN, NEVER_RAN)


def _still_queued(
    units: Mapping[UnitName, _Unit], elements: Sequence[Element]
) -> dict[UnitName, _Unit]:
    alive = {(e.job, e.index) for e in elements if e.state is not JobState.ENDED}
    return {name: unit for name, unit in units.items() if (unit.job, unit.index) in alive}


def _left_the_queue(unit: _Unit) -> Element:
    waited = unit.element is not None and unit.element.state is JobState.WAITING
    ran = not waited or Path(unit.pool.log(unit.job, unit.index)).exists()
    return Element(
        job=unit.job,
        index=unit.index,
        name=unit.pool.name,
        state=JobState.ENDED,
        reason="it left the queue" if ran else "it was cancelled while it waited",
        left_s=None,
        raw_state=UNSEEN if ran else NEVER_RAN,
    )


# Jobs ---------------------------------------------------------------------------------------------


class Jobs:
    """One manager's pools of Slurm jobs, and one launcher for all pools."""

    def __init__(
        self, slurm: Slurm, site: ManagerSite, options: Mapping[str, Any], workflow_dir: Path
    ) -> None:
        self._site = site
        self._options = options
        self._workflow_dir = workflow_dir
        self._pools: dict[str, JobPool] = {}
        self.launcher = SlurmLauncher(slurm, self._pools, site.directory, options.get("at_most"))

    def pools(self, spec: DeploymentSpec) -> list[Pool]:
        """Return the empty pools of a request. Raises ProviderError if a container cannot start."""
        made = []
        for tag, component in spec.components.items():
            lengths = [t.duration_s or 0.0 for t in spec.tasks.values() if t.component == tag]
            made.append(self.pool(component, task_s=max(lengths, default=0.0)))
        return made

    def pool(self, component: ComponentSpec, *, task_s: float = 0.0) -> Pool:
        """Return the pool of a component, and write the configuration file of its workers.
        ``task_s`` is the expected duration of the longest task in seconds, or 0 to measure it.
        """
        site, tag, logs = self._site, component.name, self._logs()
        request = JobRequest(
            component,
            self._options,
            name=pool_name(site.cluster_id, site.manager, tag, site.name),
            config=config_path(site.directory, tag),
            directory=self._workflow_dir,
            script_dir=next(iter(site.sys_path), ""),
        )
        container = container_of(request)
        if container is not None and shutil.which(container.runtime) is None:
            check_image_file(container)
        elif container is not None:
            # A trial start reports an error before every job fails. If this machine lacks the
            # runtime, only the nodes can start the container.
            logger.debug("pool %r: starting its container once", tag)
            private_directory(request.config.parent)  # the container mounts it
            prove(container)
        template = job_template(request, prefix=f"{tag}-{site.incarnation}-", logs=logs)
        self._pools[tag] = JobPool(
            name=template.name,
            prefix=template.prefix,
            script=lambda first: batch_script(template, first),
            log=lambda job, index: template.log.replace("%A", str(job)).replace(
                "%a", "4294967294" if index is None else str(index)
            ),
        )
        private_directory(request.config.parent)
        write_private(request.config, json.dumps(asdict(self._config(component))))
        return Pool(
            tag,
            self.launcher,
            {"cls": ProcessWorker, "options": {}},
            component.slots,
            walltime_s=walltime_of(self._options),
            task_s=task_s,
            shape={"cpus": component.cpus, "memory": component.memory, "gpus": component.gpus},
        )

    def _config(self, component: ComponentSpec) -> WorkerConfig:
        site = self._site
        # Another Python, such as an image's, has its own modules. From this one it gets only the
        # workflow's directory.
        alone = component.python or (component.image is not None and component.runtime != "host")
        return WorkerConfig(
            scheduler=site.scheduler,
            name="",
            nthreads=component.slots,
            resources={component.name: component.slots},
            memory_limit=component.memory_bytes or 0,
            host="",
            interface=self._options["interface"] or "",
            ports=_ports(self._options["worker_port_range"]),
            hand_over=True,
            sys_path=site.sys_path[:1] if alone else site.sys_path,
            security=security_fields(site.security),
            manager=site.manager,
            clear_away="" if site.detached else str(site.directory),
            secrets=site.secrets_of(component, self._workflow_dir),
            dask_config=serialized_config(),
        )

    def _logs(self) -> Path:
        private_directory(self._site.directory)
        if not self._site.detached:  # an embedded cluster has no record that names the owner
            owner = json.dumps(identify_process())
            write_private(self._site.directory / OWNER, owner)
        logs = self._site.log_dir or self._site.directory / "logs"
        if "%" in str(logs) or "\n" in str(logs):
            raise ClusterError(
                f"the log directory {str(logs)!r} contains '%' or a line break, which "
                "Slurm does not take literally",
                hint="choose another directory with the target's logs option",
            )
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        return logs.absolute()

    def scripts(self) -> dict[str, str]:
        return {tag: pool.script(0) for tag, pool in self._pools.items()}


def _ports(written: str | None) -> str:
    """Return a port range in Dask's notation."""
    return "" if written is None else "{}:{}".format(*parse_port_range(written))
