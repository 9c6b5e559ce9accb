"""Explanations of running clusters, for other processes of their owner."""

from __future__ import annotations

from scalable.clusters.control import ask
from scalable.errors import ClusterError, UnknownClusterError
from scalable.records import find
from scalable.views.explanation import Explanations


def explain(name: str, about: str | None = None) -> Explanations:
    """Return why pools and tasks of a cluster wait, or why a task has failed.
    ``name`` may also be the cluster's id or run. ``about`` is a tag, a task's key or its prefix, or
    a task name. None: everything that waits. Raise ClusterError if there is no match or no answer.
    """
    directory = find(name)
    cluster = directory.record().name
    answer = ask(directory, lambda scheduler: scheduler.explain(name=about, cluster=cluster))
    return Explanations.from_dict(answer)


def only_cluster() -> str:
    """Return the name of the only running cluster.
    Raise UnknownClusterError if there is none, and ClusterError, with a hint that lists them, if
    there are several.
    """
    from scalable.clusters.discovery import ANSWERING, list_clusters

    living = [status for status in list_clusters() if status.state in ANSWERING]
    names = [status.name for status in living if ":" not in status.id and not status.orphan]
    if len(names) == 1:
        return names[0]
    if not names:
        raise UnknownClusterError("no cluster runs", hint="start one with `scalable up`")
    raise ClusterError(
        f"{len(names)} clusters run: {', '.join(sorted(names))}",
        hint="name one: scalable explain NAME",
    )
