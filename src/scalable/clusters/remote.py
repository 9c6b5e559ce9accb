"""Clusters on remote sites, which share no files with this machine.
The site's objects are authoritative. The directory here is a copy of the record and the
credentials, which any process with access to the site can recreate. The status comes from the
scheduler.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from scalable import settings
from scalable.clusters.control import ask, ask_at, with_scheduler
from scalable.errors import ClusterError, ProviderError, RunError
from scalable.files import private_directory, write_private
from scalable.liveness import is_alive
from scalable.model import ClusterRecord, names
from scalable.protocol.addresses import LOOPBACK
from scalable.protocol.handlers import Handler, request
from scalable.providers.base import ProgramState, RemotePlace
from scalable.providers.registry import get_provider, provider_names, provider_traits
from scalable.records import ClusterDirectory
from scalable.records.directory import SILENT_S, UNNAMED
from scalable.records.finding import copies
from scalable.records.packing import record_in, unpack
from scalable.runs.directory import amend_status
from scalable.runs.reading import read_run

logger = logging.getLogger("scalable.clusters")

#: Seconds for the answers of all sites together.
PLACES_TIMEOUT_S = 20.0
#: Seconds for a scheduler's answer.
STATUS_TIMEOUT_S = 5.0
#: Seconds for which a site that did not answer is not queried again.
FAULT_S = 5.0
#: Seconds for copying the record of a run.
RUN_TIMEOUT_S = 60.0
#: Seconds for which the answers of a scheduler, and of a site, are cached.
FRESH_S, PROGRAMS_FRESH_S = 0.3, 1.0

#: Errors that other users' objects on a site may cause.
_ODD = (OSError, ValueError, KeyError, TypeError, AttributeError)
_Found: TypeAlias = Mapping[str, Mapping[str, str]]


class RemoteCluster(ClusterDirectory):
    """A cluster on a remote site, and the private copy of its files here."""

    _said: Mapping[str, Any] | None = None
    _said_at = _answered_at = -1e9
    _programs: Mapping[str, ProgramState] | None = None
    _programs_at = _fault_at = -1e9
    _fault: ProviderError | None = None

    def place(self) -> RemotePlace:
        record = self.record()
        found: RemotePlace = get_provider(record.provider).remote(record.place)
        return found

    def programs(self) -> Mapping[str, ProgramState]:
        """Return the programs' states, cached for a moment. A ProviderError is cached too."""
        if self._fault is not None and time.monotonic() - self._fault_at < FAULT_S:
            raise self._fault
        if self._programs is None or time.monotonic() - self._programs_at > PROGRAMS_FRESH_S:
            try:
                self._programs, self._fault = self.place().programs(self.id), None
            except ProviderError as error:
                self._fault, self._fault_at = error, time.monotonic()
                raise
            self._programs_at = time.monotonic()
        return self._programs

    def scheduler(self) -> dict[str, Any] | None:
        """Return the scheduler's address through a tunnel, or None if it does not run or answer."""
        try:
            scheduler = self.programs().get(names.SCHEDULER)
            if scheduler is None or scheduler.state != "running":
                return None
            run = self.path / "run"
            known = run.read_text() if run.exists() else None
            found = {"address": self._address(), "dashboard": None, "run": known, "log_dir": None}
        except (ProviderError, OSError, TimeoutError) as error:
            if isinstance(error, ProviderError) and not error.transient:
                self.refused = str(error)
            logger.debug("the scheduler of %s cannot be reached: %s", self.id, error)
            return None
        self.refused = None
        return found

    def _address(self) -> str:
        place = self.place()
        address = place.address(self.id)
        if address is None:
            address = f"tls://{LOOPBACK}:{tunnels.port(self.id, place)}"
        return address

    def status(self) -> dict[str, Any] | None:
        """Return the scheduler's current status, or the last one if it does not answer.
        A cluster that no local user has named is not queried, since its answer can execute code.
        """
        if not self._is_named():
            return None
        if time.monotonic() - self._said_at > FRESH_S:
            known = self.scheduler()
            if known is not None:
                self._ask(known["address"])
        return None if self._said is None else dict(self._said)

    def _is_named(self) -> bool:
        return not (self.path / UNNAMED).exists()

    def _ask(self, address: str) -> None:
        try:
            status = partial(request, handler=Handler.STATUS)
            self._said = ask_at(address, self.pem(), status, STATUS_TIMEOUT_S)
            self._answered_at = time.monotonic()
        except (OSError, TimeoutError, ValueError) as error:
            logger.debug("the scheduler of %s returns no status: %s", self.id, error)
        self._said_at = time.monotonic()

    def state(  # noqa: PLR0911 - a list of cases, the first that holds
        self,
        record: ClusterRecord,
        status: Mapping[str, Any] | None,
        now: float,  # noqa: ARG002 - the scheduler has just been asked
    ) -> tuple[str, str | None]:
        try:
            scheduler = self.programs().get(names.SCHEDULER)
        except ProviderError as error:
            return "unreachable", f"its backend does not answer: {error.message}"
        if record.stage == "deleting":
            return "deleting", None
        if scheduler is None and record.stage == "creating" and is_alive(record.creator):
            return "creating", None
        if scheduler is None or scheduler.state in ("completed", "failed"):
            return "failed", (scheduler and scheduler.reason) or "its scheduler no longer exists"
        if scheduler.state == "pending":
            return "starting", scheduler.reason or "its scheduler has not started yet"
        if not self._is_named():
            return "running", f"its pools are shown by `scalable status {record.name}`"
        if status is None and self.refused:
            return "unreachable", self.refused
        if status is None:
            return "starting", "its scheduler does not answer yet"
        silent_s = time.monotonic() - self._answered_at
        if silent_s > SILENT_S:
            return "unreachable", f"its scheduler has not answered for {silent_s:.0f} s"
        return str(status.get("state")), status.get("reason")

    def is_over(self) -> bool:
        """Return whether the cluster has finished normally or is gone, according to its site."""
        if not self.path.exists():
            return True
        try:
            scheduler = self.programs().get(names.SCHEDULER)
        except ProviderError:
            return False
        if scheduler is None:
            # Its creator writes the files here before it creates the first object there.
            return self.record().stage != "creating"
        return scheduler.state == "completed"

    def set_stage(self, stage: str) -> None:
        """Set the stage. Once all objects exist, set the time to live on the site."""
        super().set_stage(stage)
        if stage == "made" and self.path.exists():
            self.place().keep(self.id, self.record().time_to_live_s)

    def services(self) -> dict[str, dict[str, Any]]:
        """Map programs to processes or jobs. A program not started here is a job."""
        record = self.record()
        jobs = {name: {"service": record.services} for name in (names.SCHEDULER, *record.managers)}
        return jobs | super().services()

    def fetch_run(self) -> None:
        """Update the copy of the cluster's run in this machine's directory of runs."""
        runs = settings.runs_dir().absolute()
        try:
            with self.locked():  # two processes that copy at once would write the rows twice
                path = with_scheduler(
                    self,
                    lambda comm: copy_run(partial(request, comm, Handler.RUN_FILES), runs),
                    RUN_TIMEOUT_S,
                )
        except (ClusterError, OSError, ValueError, AttributeError) as error:
            logger.debug("could not copy the run of %s: %s", self.id, error)
        else:
            write_private(self.path / "run", str(path))

    def remove(self) -> None:
        """Remove the local files, and mark the copied run as completed if it is running."""
        run = self.path / "run"
        if run.exists():
            path = Path(run.read_text())
            with suppress(RunError):
                if read_run(path).run.get("status") == "running":
                    amend_status(path, "completed")
        super().remove()

    # Logs -----------------------------------------------------------------------------------------

    def worker_logs(self) -> Path:
        """Return the directory with copies of the workers' output."""
        return self.path / "worker-logs"

    def fetch_logs(self) -> None:
        """Append new output of programs and workers to the copies here."""
        with self.locked():
            self._fetch_logs()

    def _fetch_logs(self) -> None:
        marks = private_directory(self.path / "log-marks")
        programs = {names.SCHEDULER, *(f"manager-{name}" for name in self.record().managers)}
        known = {path.name: path.read_text() for path in marks.iterdir()}
        for name, (text, mark) in self.place().logs(self.id, known).items():
            if not names.FILE_NAME.accepts(name):
                logger.warning("the output of %.80r is not copied: it cannot be a file", name)
                continue
            parent = self.logs_dir if name in programs else self.worker_logs()
            log = private_directory(parent) / f"{name}.log"
            log.touch(mode=0o600)
            with log.open("a") as file:
                file.write(text)
            (marks / name).write_text(mark)


# Copies -------------------------------------------------------------------------------------------


def fetch_copies() -> list[str]:
    """Copy the files of all clusters on all reachable sites, and return new clusters' ids."""
    new, errors = ask_places()
    for error in errors:
        logger.warning("could not list remote clusters: %s", error)
    return new


def ask_places() -> tuple[list[str], list[str]]:
    """Copy files as :func:`fetch_copies`. Return new ids, and an error for each failed site."""
    asked = list(_places())
    new: list[str] = []
    errors: list[str] = []
    if not asked:
        return new, errors
    deadline = time.monotonic() + PLACES_TIMEOUT_S
    answers = [_ask_beside(get_provider(name).remote(place).clusters) for name, place in asked]
    for (name, place), answer in zip(asked, answers, strict=True):
        try:
            found = answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            errors.append(f"{_place_label(name, place)}: no answer within {PLACES_TIMEOUT_S:g} s")
        except ProviderError as error:
            errors.append(f"{_place_label(name, place)}: {error.message}")
        except _ODD as error:
            errors.append(f"{_place_label(name, place)}: {type(error).__name__}: {error}")
        else:
            new += _copied(name, place, found)
    return new, errors


def _ask_beside(question: Callable[[], _Found]) -> Future[_Found]:
    """Call ``question`` in a daemon thread, and return a future of its answer."""
    answer: Future[_Found] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except (ProviderError, *_ODD) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="scalable-place", daemon=True).start()
    return answer


def _places() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield (provider, site) for the sites of all recorded clusters and of all providers."""
    told = [(record.provider, dict(record.place)) for record in _remote_records().values()]
    for name in provider_names():
        try:
            if provider_traits(name).remote:
                told += [(name, dict(place)) for place in get_provider(name).places()]
        except ProviderError as error:
            logger.debug("could not list the sites of provider %s: %s", name, error)
    for index, each in enumerate(told):
        if each not in told[:index]:
            yield each


def _remote_records() -> dict[str, ClusterRecord]:
    return {record.id: record for record in copies() if record.remote}


def _place_label(provider: str, place: Mapping[str, str]) -> str:
    return f"{provider} ({', '.join(f'{key} {value}' for key, value in place.items() if value)})"


def _taken(
    record: ClusterRecord, cluster_id: str, provider: str, place: Mapping[str, str]
) -> ClusterRecord:
    """Return a copied record without the fields that could affect this machine."""
    if record.id != cluster_id or str(uuid.UUID(cluster_id)) != cluster_id:
        raise ClusterError(f"its record belongs to another cluster, {record.id!r:.80}")
    names.CLUSTER.require(record.name)
    return dataclasses.replace(
        record,
        provider=provider,
        services=provider,
        remote=True,
        embedded=False,
        place=dict(place),
        stage="made",
        creator={},
        sys_path=(),
        working_dir=None,
        runs_dir=None,
        log_dir=None,
    )


def _copied(
    provider: str, place: Mapping[str, str], found: Mapping[str, Mapping[str, str]]
) -> list[str]:
    known = _remote_records()
    for cluster_id, record in known.items():
        same = (record.provider, dict(record.place)) == (provider, dict(place))
        if same and cluster_id not in found and record.stage != "creating":
            cluster = RemoteCluster(ClusterDirectory.parent() / cluster_id)
            if cluster.is_over():
                logger.debug(
                    "cluster %s is no longer in its site, so its copy is removed", cluster_id
                )
                cluster.remove()
    new = []
    for cluster_id, files in found.items():
        if cluster_id in known:
            continue
        try:
            record = _taken(record_in(files), cluster_id, provider, place)
            unpack(files, record, copied=True)
        except (ClusterError, *_ODD) as error:
            logger.warning("cluster %s in %s: %s", cluster_id, _place_label(provider, place), error)
            continue
        logger.debug("cluster %s was found in %s", cluster_id, _place_label(provider, place))
        new.append(cluster_id)
    return new


# Tunnels ------------------------------------------------------------------------------------------

_TIMEOUT_S = 10.0


class Tunnels:
    """One tunnel for each cluster, until the process exits."""

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}
        self._lock = threading.Lock()

    def port(self, cluster_id: str, place: RemotePlace) -> int:
        """Return the loopback port of a cluster's tunnel, opening the tunnel on first use."""
        from scalable.client.tunnel import in_background

        with self._lock:
            if cluster_id not in self._ports:
                self._ports[cluster_id] = in_background(_opened(place, cluster_id), _TIMEOUT_S)
            return self._ports[cluster_id]


async def _opened(place: RemotePlace, cluster_id: str) -> int:
    return await place.tunnel(cluster_id).open()


#: The tunnels of this process.
tunnels = Tunnels()


# Copies of runs -----------------------------------------------------------------------------------


_STREAM = ".jsonl"
#: Seconds between two copies, and longest wait for one.
PULL_S = 10.0
PULL_TIMEOUT_S = 60.0
LAST_TIMEOUT_S = 10.0


#: Coroutine function with the arguments and the answer of :attr:`.Handler.RUN_FILES`.
Read: TypeAlias = Callable[..., Awaitable[dict[str, Any]]]


async def copy_run(read: Read, parent: Path) -> Path:
    """Update the copy of a run below ``parent``, and return its directory."""
    path: Path | None = None
    while True:
        # Only the first answer adds rows about costs, or there would always be new ones.
        first = path is None
        answer = await read(known={} if path is None else _sizes(path), costs=first)
        path = parent / names.FILE_NAME.require(str(answer["run"]))
        if first and path.is_dir():
            continue  # existing data need not be sent
        private_directory(path)
        for name, data in answer["files"].items():
            names.FILE_NAME.require(name)
            with (path / name).open("ab" if name.endswith(_STREAM) else "wb") as file:
                file.write(data)
        if not any(name.endswith(_STREAM) and data for name, data in answer["files"].items()):
            return path


class StreamCopy:
    """Copy of some streams of a remote run, appended to a local run."""

    def __init__(self, directory: Path, streams: Iterable[str]) -> None:
        self._directory = directory
        self._sizes = {f"{stream}{_STREAM}": 0 for stream in streams}

    async def pull(self, read: Read, *, costs: bool = False) -> None:
        """Append the rows since the last call. ``costs`` adds rows for the costs so far."""
        while True:
            files = (await read(known=self._sizes, costs=costs))["files"]
            costs = False
            added = {name: data for name, data in files.items() if name in self._sizes and data}
            for name, data in added.items():
                with (self._directory / name).open("ab") as file:
                    file.write(data)
                self._sizes[name] += len(data)
            if not added:
                return


class RepeatedPull:
    """Thread that updates a copy every few seconds until it is closed."""

    def __init__(self, cluster: Any, copy: StreamCopy) -> None:
        self._cluster, self._copy = cluster, copy
        cluster.before_end = self._last
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scalable-rows", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(PULL_S):
            self.pull()

    def pull(self) -> None:
        """Copy the additions since the last time. A failure is only logged."""
        with self._lock, self._failing():
            self._cluster.sync(self._pull, callback_timeout=PULL_TIMEOUT_S)

    async def _pull(self, *, costs: bool = False) -> None:
        await self._copy.pull(self._cluster.run_files, costs=costs)

    async def _last(self) -> None:
        """Copy the machines' final costs once the workers have stopped."""
        import asyncio  # the command line loads this module without it

        with self._failing():
            await asyncio.wait_for(self._pull(costs=True), LAST_TIMEOUT_S)

    @staticmethod
    @contextmanager
    def _failing() -> Iterator[None]:
        try:
            yield
        except (OSError, TimeoutError, ClusterError) as error:
            logger.warning("the record of the run is not complete: %s", error)

    def close(self) -> None:
        """Stop the thread and copy the last rows."""
        self._done.set()
        self._thread.join(PULL_TIMEOUT_S)
        self.pull()


def flush_run(directory: ClusterDirectory) -> None:
    """Make the scheduler write the buffered rows of its run."""
    directory.fetch_run()
    run = (directory.scheduler() or {}).get("run")
    try:
        known = {} if run is None else _sizes(Path(run))
        if known:  # there is a record on this machine
            ask(directory, Handler.RUN_FILES, known=known, costs=True)
    except (ClusterError, OSError) as error:
        logger.debug("could not write the last rows of %s: %s", directory.id, error)


def _sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in directory.iterdir() if path.is_file()}
