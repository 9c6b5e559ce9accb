"""Clusters, sessions, executors and plans as HTML for notebooks, without scripts.
All strings are made harmless and escaped by a template.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from scalable.harmless import one_line
from scalable.model import DeploymentSpec
from scalable.model.components import WorkerRange
from scalable.model.overview import Events, Overview, PoolOverview
from scalable.views.cluster_text import facts as facts_of
from scalable.views.cluster_text import title
from scalable.views.columns import parts_of, pool_reasons, tables_of
from scalable.views.page import Piece, page_file
from scalable.views.tables import Table, counts_in_words, fitted, text_table

if TYPE_CHECKING:
    from jinja2 import Template

#: Maximum rows of task names, and of pools.
SHOWN_TASKS, SHOWN_POOLS = 12, 30
#: Maximum cells of a name, and of a longer text.
_NAME, _TEXT = 90, 2_000

#: Style of a state. All other states are warnings.
_LOOKS = {
    "running": "good",
    **dict.fromkeys(("not running", "starting", "closing", "closed", "shut down"), "soft"),
}

Facts = Sequence[tuple[str, Any]]


def in_notebook(pieces: Iterable[Piece]) -> str:
    """Return pieces as a fragment with its own styles. More kinds of pieces than on the page are
    ``head`` (kind, name, state and its look) and ``progress``; tables may have ``more`` rows.
    """
    body = _template().render(pieces=list(pieces))
    return f'<div class="sn"><style>{_style()}</style>{body}</div>'


def limited(table: Table, most: int, noun: str) -> Piece:
    """Return the first rows of a table, and how many more things it has."""
    more = max(0, len(table.rows) - most)
    return {"table": table.first(most), "more": f"{more} more {noun}s" if more else ""}


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
    pieces: list[Piece] = [{"head": (kind, name, state, _LOOKS.get(state, "warn"))}]
    pieces.append({"facts": facts})
    if overview is not None:
        own = {t: pool for t, pool in overview.pools.items() if tag in (None, t)}
        decided = [pool.decided for pool in overview.pools.values() if pool.decided]
        tables = tables_of(overview, "notebook", Events(seq=0, decisions=decided))
        tasks, decisions = (tables[each].of_pool(tag) for each in ("tasks", "decisions"))
        folded = {"Managers": tables["managers"], "Last decision of each pool": decisions}
        pieces += [
            *_told(overview),
            {"table": tables["pools"].of_pool(tag).first(SHOWN_POOLS)},
            *_reasons(own),
            *([limited(tasks, SHOWN_TASKS, "task name")] if tasks.rows else []),
            *(
                {"details": words, "pieces": [{"table": made.first(SHOWN_POOLS)}]}
                for words, made in folded.items()
                if made.rows
            ),
        ]
    if table is not None:
        pieces.append({"table": table})
    if note:
        pieces.append({"text": note, "look": "soft"})
    return in_notebook(pieces)


def _told(overview: Overview) -> Iterator[Piece]:
    """Yield the facts about a cluster, with its progress and predicted end apart."""
    told, parts = facts_of(overview, "notebook"), parts_of(overview.counts)
    progress, end = told.pop("progress")[1], told.pop("end", ("", ""))[1]
    yield {"progress": progress, "end": end, "parts": parts, "words": counts_in_words(parts)}
    yield {"facts": list(told.values())}


def _reasons(pools: Mapping[str, PoolOverview]) -> Iterator[Piece]:
    yield from ({"text": reason, "look": "warn"} for reason in pool_reasons(pools))


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
    pieces: list[Piece] = []
    for each in overviews:
        tasks = limited(tables_of(each, "notebook")["tasks"], SHOWN_TASKS, "task name")
        head = {"head": ("Progress of", title(each), "", "")}
        pieces += [head, *_told(each), *_reasons(each.pools), tasks]
    return in_notebook(pieces or [{"text": "No cluster is running.", "look": "soft"}])


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


# Template -----------------------------------------------------------------------------------------


@functools.cache
def _template() -> Template:
    # A session that shows no HTML starts without the template engine.
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def finalized(value: Any) -> Any:
        is_text = isinstance(value, str) and not isinstance(value, Markup)
        return one_line(value) if is_text else value

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "name": lambda value: fitted(value, _NAME),
        "text": lambda value: fitted(value, _TEXT),
    }
    return environment.from_string(page_file("notebook.html"))


@functools.cache
def _style() -> str:
    """Return the rules for light and dark themes, which override the notebook's own rules."""
    return page_file("notebook.css").replace(".sn ", ".sn" * 3 + " ").replace("\n", "")
