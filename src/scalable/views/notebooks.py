"""Clusters, sessions, clients and executors as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scalable.model import DeploymentSpec
from scalable.model.components import WorkerRange
from scalable.model.overview import Overview
from scalable.views.overview_tables import (
    decisions_table,
    managers_table,
    pool_reasons,
    pools_table,
    reasons_in_words,
    summary,
    tasks_table,
)
from scalable.views.tables import Column, Table, row
from scalable.views.templates import in_notebook, render

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
        tasks = tasks_table(overview).of_pool(tag)
        pools = pools_table(overview).of_pool(tag)
        own = {t: pool for t, pool in overview.pools.items() if tag in (None, t)}
        decided = [pool.decided for pool in overview.pools.values() if pool.decided]
        failures = f"Failures: {reasons_in_words(overview.failures)}" if overview.failures else ""
        values = {
            "lines": summary(overview)[1:],
            "failures": failures,
            "managers": managers_table(overview).first(SHOWN_POOLS),
            "decided": decisions_table(decided, overview.at).of_pool(tag).first(SHOWN_POOLS),
            "pools": pools.first(SHOWN_POOLS),
            "reasons": pool_reasons(replace(overview, pools=own)),
            "tasks": tasks.first(SHOWN_TASKS),
            "more": max(0, len(tasks.rows) - SHOWN_TASKS),
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
    return in_notebook(render("cluster.html", overview=overview, **given, **values))


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
        state = str(cluster.get("state") or state)
    elif state == "running":
        note = "The scheduler has not answered: counts are not known."
    return render_overview(kind, name, state, overview, facts=facts, note=note)


_CLUSTER = (("Project", "project"), ("Target", "target"), ("Provider", "provider"), ("Run", "run"))


def render_progress(overviews: Sequence[Overview]) -> str:
    """Return the tasks of clusters by name as HTML, or a message if there are no clusters."""
    shown = []
    for overview in overviews:
        tasks = tasks_table(overview)
        name, calls, end, *_ = summary(overview)
        shown.append(
            {
                "name": name,
                "lines": (calls, end),
                "reasons": pool_reasons(overview),
                "tasks": tasks.first(SHOWN_TASKS),
                "more": max(0, len(tasks.rows) - SHOWN_TASKS),
            }
        )
    return in_notebook(render("progress.html", clusters=shown))


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

_COLUMNS = (
    Column("pool"),
    *(Column(title, number=True) for title in ("workers", "cpus", "memory", "gpus")),
    Column("tasks"),
)


def component_table(spec: DeploymentSpec) -> Table:
    """Return a deployment's components as requested in the manifest."""
    rows = []
    for tag, component in spec.components.items():
        tasks = [task.name for task in spec.tasks.values() if task.component == tag]
        workers = _range(component.workers)
        memory = "-" if component.memory is None else component.memory
        texts = (tag, workers, f"{component.cpus:g}", memory, component.gpus, ", ".join(tasks))
        rows.append(row(tag, texts, texts, pool=tag))
    return Table(_COLUMNS, tuple(rows), "no components")


def _range(workers: WorkerRange | None) -> str:
    if workers is None:
        return "-"
    if workers.fixed is not None:
        return str(workers.fixed)
    most = "any" if workers.maximum is None else workers.maximum
    return f"{workers.minimum} to {most}"
