"""Explanations of running clusters, for other processes of their owner."""

from __future__ import annotations

from scalable.errors import ClusterError, UnknownClusterError
from scalable.explaining.explanation import Explanations
from scalable.lifecycle.control import ask
from scalable.records import find


def explain(name: str, about: str | None = None) -> Explanations:
    """Return why pools and calls of a cluster wait, or why a call has failed.

    Parameters
    ----------
    name
        Name or id of the cluster, or name of its run.
    about
        Tag, key of a call or its beginning, or name of a task; None for all that waits.

    Raises
    ------
    ClusterError
        When no cluster matches, or its scheduler does not answer.
    """
    directory = find(name)
    cluster = directory.record().name
    answer = ask(directory, lambda scheduler: scheduler.explain(name=about, cluster=cluster))
    return Explanations.from_dict(answer)


def only_cluster() -> str:
    """Return the name of the only cluster that runs.

    Raises
    ------
    UnknownClusterError
        When no cluster runs.
    ClusterError
        When several run; the hint lists them.
    """
    from scalable.lifecycle.discovery import ANSWERING, list_clusters

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
