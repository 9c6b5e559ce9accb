"""Clusters, sessions, clients and executors as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from scalable.model import DeploymentSpec
from scalable.model.components import WorkerRange
from scalable.model.overview import Events, Overview, PoolOverview
from scalable.views.cluster_text import facts as facts_of
from scalable.views.cluster_text import title
from scalable.views.columns import parts_of, pool_reasons, tables_of
from scalable.views.tables import Table, counts_in_words, text_table
from scalable.views.templates import in_notebook

#: Maximum rows of task names, and of pools.
SHOWN_TASKS, SHOWN_POOLS = 12, 30

#: Style of a state. All other states are warnings.
_LOOKS = {
    "running": "good",
    **dict.fromkeys(("not running", "starting", "closing", "closed", "shut down"), "soft"),
}

Facts = Sequence[tuple[str, Any]]


def render_overview(
    kind: str,
    name: str,
    state: str,
    overview: Overview | None,
    *,
    facts: Facts = (),
    note: str = "",
    tag: str | None = None,
    table: Table | None = None,
) -> str:
    """Return HTML for an object that belongs to a cluster.
    ``facts`` (titles and values) precede the counts, ``table`` and ``note`` follow them. ``tag``
    selects a pool (``""``: the untagged one). ``overview`` is None without a running cluster.
    """
    values: dict[str, Any] = {}
    if overview is not None:
        own = {t: pool for t, pool in overview.pools.items() if tag in (None, t)}
        decided = [pool.decided for pool in overview.pools.values() if pool.decided]
        tables = tables_of(overview, "notebook", Events(seq=0, decisions=decided))
        values = {
            **_shown(overview, tables["tasks"].of_pool(tag), own),
            "managers": tables["managers"].first(SHOWN_POOLS),
            "decided": tables["decisions"].of_pool(tag).first(SHOWN_POOLS),
            "pools": tables["pools"].of_pool(tag).first(SHOWN_POOLS),
        }
    given: dict[str, Any] = {
        "kind": kind,
        "name": name,
        "state": state,
        "look": _LOOKS.get(state, "warn"),
        "facts": facts,
        "note": note,
        "table": table,
    }
    return in_notebook("cluster.html", overview=overview, **given, **values)


def _shown(overview: Overview, tasks: Table, pools: Mapping[str, PoolOverview]) -> dict[str, Any]:
    """Return the facts about a cluster, with its progress and predicted end apart, the reasons of
    ``pools``, and the first ``tasks``.
    """
    told = facts_of(overview, "notebook")
    parts = parts_of(overview.counts)
    return {
        "told": {
            "parts": parts,
            "words": counts_in_words(parts),
            "progress": told.pop("progress")[1],
            "end": told.pop("end", ("", ""))[1],
            "others": told.values(),
        },
        "reasons": pool_reasons(pools),
        "tasks": tasks.first(SHOWN_TASKS),
        "more": max(0, len(tasks.rows) - SHOWN_TASKS),
    }


def render_cluster(
    kind: str, name: str, state: str, address: str, overview: Overview | None
) -> str:
    """Return a cluster object as HTML. ``address`` is its scheduler's."""
    facts: list[tuple[str, Any]] = []
    if state == "running":
        facts.append(("Scheduler", address))
    note = ""
    if overview is not None:
        cluster = overview.cluster
        facts += [(t, cluster[k]) for t, k in _CLUSTER if cluster.get(k)]
        if run := cluster.get("run"):  # a saved notebook shows no paths of this machine
            facts.append(("Run", PurePath(str(run)).name))
        state = str(cluster.get("state") or state)
    elif state == "running":
        note = "The scheduler has not answered: counts are not known."
    return render_overview(kind, name, state, overview, facts=facts, note=note)


_CLUSTER = (("Project", "project"), ("Target", "target"), ("Provider", "provider"))


def render_progress(overviews: Sequence[Overview]) -> str:
    """Return the tasks of clusters by name as HTML, or a message if there are no clusters."""
    shown = [
        {"name": title(each), **_shown(each, tables_of(each, "notebook")["tasks"], each.pools)}
        for each in overviews
    ]
    return in_notebook("progress.html", clusters=shown)


def render_executor(
    tag: str, state: str, overview: Overview | None, *, unfinished: int, asked: Facts
) -> str:
    """Return an executor as HTML.
    ``tag`` is ``""`` for any worker. ``unfinished`` counts the executor's own queued and running
    tasks. ``asked`` has titles and values of its options.
    """
    facts = [*asked, ("Unfinished tasks of this executor", unfinished)]
    name = f"tag {tag}" if tag else "any worker"
    return render_overview("PoolExecutor", name, state, overview, facts=facts, tag=tag or None)


# Sessions -----------------------------------------------------------------------------------------


def component_table(spec: DeploymentSpec) -> Table:
    """Return a deployment's components as requested in the manifest."""
    rows = []
    for tag, component in spec.components.items():
        tasks = [task.name for task in spec.tasks.values() if task.component == tag]
        workers = _range(component.workers)
        memory = "-" if component.memory is None else component.memory
        cpus = f"{component.cpus:g}"
        rows.append((tag, workers, cpus, memory, component.gpus, ", ".join(tasks)))
    headings = ("pool", "workers", "cpus", "memory", "gpus", "tasks")
    return text_table(headings, rows, left=("tasks",), empty="no components")


def _range(workers: WorkerRange | None) -> str:
    if workers is None:
        return "-"
    if workers.fixed is not None:
        return str(workers.fixed)
    most = "any" if workers.maximum is None else workers.maximum
    return f"{workers.minimum} to {most}"
