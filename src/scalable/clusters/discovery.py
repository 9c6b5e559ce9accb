"""Discovery of clusters, and views of running ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeAlias, overload

from scalable.clusters.control import ask, with_scheduler
from scalable.clusters.remote import ask_places
from scalable.errors import ClusterError, UnknownClusterError
from scalable.model import ClusterStatus
from scalable.model.overview import Events, Overview, WorkerOverview
from scalable.protocol.handlers import Handler, request
from scalable.providers.registry import provider_class, provider_names
from scalable.records import ClusterDirectory, all_directories, find, status_of

logger = logging.getLogger("scalable.clusters")

#: Time limit for all plug-ins together, in seconds.
PLUGIN_TIMEOUT_S = 20.0
#: Seconds for a scheduler's answer to a status request.
STATUS_TIMEOUT_S = 3.0
#: States in which a cluster's scheduler is queried for its current status.
ANSWERING = ("starting", "running", "degraded", "unmanaged")
DASK_GROUP = "dask_cluster_discovery"
OWN = "scalable"
#: Name prefix of the threads that query plug-ins.
THREAD = "discovery by "


@dataclass(frozen=True)
class ClusterListing(Sequence[ClusterStatus]):
    """Clusters, and the errors of plugins that could not list theirs."""

    #: Clusters in order of creation, followed by clusters without a record.
    clusters: tuple[ClusterStatus, ...]
    #: One message for each plug-in or file that failed.
    errors: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.clusters)

    def __iter__(self) -> Iterator[ClusterStatus]:
        return iter(self.clusters)

    @overload
    def __getitem__(self, index: int) -> ClusterStatus: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ClusterStatus]: ...
    def __getitem__(self, index: int | slice) -> ClusterStatus | Sequence[ClusterStatus]:
        return self.clusters[index]


def list_clusters(*, with_remains: bool = False) -> ClusterListing:
    """Return all clusters of this user that can be found from this machine.

    If a plugin raises or does not answer within 20 s, only its own clusters are missing. The record
    of a killed session is removed once nothing of its cluster is left.

    Parameters
    ----------
    with_remains
        True to keep the records of killed sessions, and list these as failed clusters.
    """
    unanswered = ask_places()[1]
    recorded, errors = _recorded()
    errors += unanswered
    found, failures = _ask_plugins()
    if not with_remains:
        left = {status.id for status in found}
        silent = tuple(failure.partition(":")[0] for failure in failures)
        recorded = [s for s in recorded if s.id in left or not _is_over(s, silent)]
    known = {status.id for status in recorded}
    # A cluster that was created during the queries is not an orphan, and neither is one whose
    # directory cannot be read.
    known |= {path.name for path in ClusterDirectory.parent().glob("*")}
    orphans: dict[tuple[str, str], ClusterStatus] = {}
    for status in found:
        if status.id not in known:
            orphans.setdefault((status.provider, status.id), status)
    return ClusterListing((*recorded, *orphans.values()), (*errors, *failures))


def _is_over(status: ClusterStatus, silent: Iterable[str]) -> bool:
    """Return whether only a killed session's record is left. If so, remove the record."""
    over = status.embedded and status.state in ("failed", "stale")
    if not over or f"provider {status.provider!r}" in silent:
        return False
    with suppress(OSError):
        ClusterDirectory(ClusterDirectory.parent() / status.id).remove()
    return True


def _recorded() -> tuple[list[ClusterStatus], list[str]]:
    directories, errors = all_directories()
    found = []
    for directory in directories:
        try:
            found.append(status_of(directory, time.time()))
        except FileNotFoundError:
            continue  # removed at this moment
        except (ClusterError, OSError, ValueError, TypeError) as error:
            errors.append(f"{directory.path}: {error}")
    found.sort(key=lambda status: (status.created_at, status.id))
    return found, errors


def status(name: str) -> ClusterStatus:
    """Return a cluster's status from its scheduler, or from disk. May raise ClusterError."""
    directory = find(name)
    on_disk = status_of(directory, time.time())
    if on_disk.state not in ANSWERING:
        return on_disk
    answer = None
    try:
        if on_disk.embedded:  # the status on disk is the session's, without its tasks
            told = ask(directory, Handler.OVERVIEW, timeout_s=STATUS_TIMEOUT_S)
            counts = Overview.from_dict(told["overview"]).counts
            return replace(on_disk, tasks=asdict(counts))
        answer = ask(directory, Handler.STATUS, timeout_s=STATUS_TIMEOUT_S)
    except ClusterError as error:
        logger.debug("using the last written status of %s: %s", name, error)
    return status_of(directory, time.time(), answer)


def only_cluster() -> str:
    """Return the name of the only running cluster, or else of the only recorded one.
    Raise a ClusterError with the names if there are several.
    """
    found = [status for status in list_clusters() if ":" not in status.id and not status.orphan]
    found = [status for status in found if status.state in ANSWERING] or found
    if not found:
        raise UnknownClusterError("no cluster is running", hint="start one with `scalable up`")
    if len(found) > 1:
        names = ", ".join(sorted(status.name for status in found))
        raise ClusterError(f"there are {len(found)} clusters: {names}", hint="name one of them")
    return found[0].name


def asking() -> bool:
    """Return whether a discovery plugin has not answered yet."""
    return any(thread.name.startswith(THREAD) for thread in threading.enumerate())


# Plug-ins -----------------------------------------------------------------------------------------


_Question: TypeAlias = Callable[[], Iterable[ClusterStatus]]


def _ask_plugins() -> tuple[list[ClusterStatus], list[str]]:
    """Query all plugins at once. Return their rows, and an error for each failed one."""
    loads = {f"provider {name!r}": partial(_question, name) for name in provider_names()}
    foreign = [point for point in entry_points(group=DASK_GROUP) if point.name != OWN]
    for point in foreign:
        loads[f"{DASK_GROUP} plug-in {point.name!r}"] = partial(_foreign, point)
    if foreign:
        import distributed  # noqa: F401 - the questions of plug-ins may import it too
    asked = _Asked(loads)
    asked.ask(time.monotonic() + PLUGIN_TIMEOUT_S)
    rows: list[ClusterStatus] = []
    errors: list[str] = []
    for who in loads:
        answer = asked.answer(who)
        if isinstance(answer, str):
            errors.append(f"{who}: {answer}")
        else:
            rows += answer
    return rows, errors


class _Asked:
    """Plugins, queried in parallel. Imports are sequential, because parallel ones can fail."""

    def __init__(self, loads: Mapping[str, Callable[[], _Question]]) -> None:
        self._loads = loads
        self._answers: dict[str, list[ClusterStatus] | str] = {}

    def ask(self, deadline: float) -> None:
        """Query all plugins. Return when all have answered, or at the monotonic ``deadline``."""
        threads = []
        for who, load in self._loads.items():
            imported = threading.Event()
            thread = threading.Thread(
                target=self._ask, args=(who, load, imported), name=f"{THREAD}{who}", daemon=True
            )
            threads.append(thread)
            thread.start()
            imported.wait(min(PLUGIN_TIMEOUT_S / 2, max(0.0, deadline - time.monotonic())))
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def answer(self, who: str) -> list[ClusterStatus] | str:
        """Return a plugin's rows, or the reason why it has none."""
        return self._answers.get(who, f"no answer within {PLUGIN_TIMEOUT_S:g} s")

    def _ask(self, who: str, load: Callable[[], _Question], imported: threading.Event) -> None:
        try:
            question = load()
            imported.set()
            self._answers[who] = list(question())
        except BaseException as error:  # noqa: BLE001 - a plug-in may raise anything at all
            self._answers[who] = f"{type(error).__name__}: {error}"
        finally:
            imported.set()


def _question(provider: str) -> _Question:
    cls = provider_class(provider)
    if not hasattr(cls, "discover"):
        return list
    return lambda: [_orphan(provider, row) for row in cls().discover()]


def _orphan(provider: str, row: Mapping[str, Any]) -> ClusterStatus:
    return ClusterStatus(
        name=str(row.get("name") or ""),
        id=str(row["id"]),
        provider=provider,
        target="",
        state="unmanaged",
        orphan=True,
        reason=f"no record on this machine: {row.get('what') or 'resources are left'}",
    )


def _foreign(point: EntryPoint) -> _Question:
    """Import another package's discovery plugin, and return a function that lists its clusters."""
    import asyncio

    discover = point.load()

    async def collect() -> list[ClusterStatus]:
        return [
            ClusterStatus(
                name=str(name),
                id=f"{point.name}:{name}",
                provider=point.name,
                target="",
                state="unmanaged",
                reason=f"it belongs to {point.value.partition(':')[0]}",
            )
            async for name, _ in discover()
        ]

    return lambda: asyncio.run(collect())


# Dask's discovery ---------------------------------------------------------------------------------


async def clusters_for_dask() -> AsyncIterator[tuple[str, type[Any]]]:
    """Yield name and class of each cluster that accepts connections."""
    from scalable.client.attached import DiscoveredCluster

    for directory in all_directories()[0]:
        try:
            record, scheduler = directory.record(), directory.scheduler()
        except (FileNotFoundError, ClusterError):
            continue  # it has just stopped, or a file is damaged: list the others
        if not record.embedded and scheduler is not None:
            yield record.name, DiscoveredCluster


# Views of running clusters ------------------------------------------------------------------------


#: Kinds of events that a terminal shows.
SHOWN_KINDS = ("decisions", "failures", "samples")
#: Maximum number of workers to query.
MOST_WORKERS = 1_000
#: States of running clusters.
LIVING = ("creating", *ANSWERING)


@dataclass(frozen=True)
class RunningClusters:
    """The running clusters and sessions."""

    #: Clusters in order of creation.
    clusters: tuple[ClusterStatus, ...]
    #: Names of the runs, by cluster id.
    runs: dict[str, str]
    #: One message for each plug-in or record that could not be read.
    errors: tuple[str, ...] = ()


def look(name: str, since: int = 0) -> tuple[Overview, Events]:
    """Return the overview and the events of a running cluster, given its name, id or run.
    ``since`` is the number of the last known event, 0 for all events. Raise ClusterError if no
    cluster matches or answers.
    """
    answer = ask(find(name), Handler.OVERVIEW, since=since, kinds=SHOWN_KINDS)
    return Overview.from_dict(answer["overview"]), Events.from_dict(answer["events"])


def workers_of(name: str, tag: str | None = None) -> list[WorkerOverview]:
    """Return the workers of a running cluster, at most 1,000."""

    async def page_by_page(scheduler: Any) -> list[WorkerOverview]:
        found: list[WorkerOverview] = []
        while len(found) < MOST_WORKERS:
            answer = await request(scheduler, Handler.WORKERS, tag=tag, first=len(found))
            found += map(WorkerOverview.from_dict, answer["workers"])
            if not answer["workers"] or len(found) >= answer["total"]:
                break
        return found[:MOST_WORKERS]

    return with_scheduler(find(name), page_by_page)


def running_clusters() -> RunningClusters:
    """Return the running clusters and sessions of this user that can be found from here."""
    listing = list_clusters()
    clusters = [s for s in listing if s.state in LIVING and not s.orphan and ":" not in s.id]
    runs = {}
    for status in clusters:
        try:
            said = ClusterDirectory(ClusterDirectory.parent() / status.id).scheduler() or {}
        except ClusterError:
            continue
        if said.get("run"):
            runs[status.id] = Path(said["run"]).name
    return RunningClusters(tuple(clusters), runs, listing.errors)
