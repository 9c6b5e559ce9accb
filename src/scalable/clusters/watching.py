"""Views of running clusters: overviews, workers, and a list of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scalable.clusters.control import ask
from scalable.clusters.discovery import ANSWERING, list_clusters
from scalable.errors import ClusterError
from scalable.model import ClusterStatus
from scalable.model.overview import Events, Overview, WorkerOverview
from scalable.protocol.handlers import SchedulerCalls
from scalable.records import ClusterDirectory, find

#: Kinds of events that a terminal shows.
SHOWN_KINDS = ("decisions", "failures", "samples")
#: Maximum number of workers to query.
MOST_WORKERS = 1_000
#: States of running clusters.
LIVING = ("creating", *ANSWERING)


@dataclass(frozen=True)
class Living:
    """The running clusters and sessions."""

    #: In order of creation.
    clusters: tuple[ClusterStatus, ...]
    #: Names of the runs, by cluster id.
    runs: dict[str, str]
    #: One message for each plug-in or record that could not be read.
    errors: tuple[str, ...] = ()


def look(
    name: str, since: int | None = 0, kinds: Iterable[str] = SHOWN_KINDS
) -> tuple[Overview, Events]:
    """Return the overview of a running cluster, and its events.
    ``name`` may also be an id or a run. ``since`` is the number of the caller's last event: 0 for
    all events, None for none. ``kinds`` as in :meth:`.SchedulerCalls.overview`. Raise ClusterError
    if no cluster matches, or its scheduler does not answer.
    """
    wanted = tuple(kinds)
    answer = ask(find(name), lambda scheduler: scheduler.overview(since, wanted))
    events = answer.get("events")
    return (
        Overview.from_dict(answer["overview"]),
        Events(seq=0) if events is None else Events.from_dict(events),
    )


def workers_of(name: str, tag: str | None = None) -> list[WorkerOverview]:
    """Return the workers of a running cluster, at most 1,000.
    ``tag`` is "" for workers without a tag, and None for all.
    """
    directory = find(name)

    async def page_by_page(scheduler: SchedulerCalls) -> list[WorkerOverview]:
        found: list[WorkerOverview] = []
        while len(found) < MOST_WORKERS:
            answer = await scheduler.workers(tag, len(found))
            found += map(WorkerOverview.from_dict, answer["workers"])
            if not answer["workers"] or len(found) >= answer["total"]:
                break
        return found[:MOST_WORKERS]

    return ask(directory, page_by_page)


def all_that_live() -> Living:
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
    return Living(tuple(clusters), runs, listing.errors)
