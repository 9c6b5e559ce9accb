"""Pages and data of the dashboard: an overview, its events, and single tasks.
Dask's HTTP server requires the token for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from operator import attrgetter
from typing import Any

from distributed.http.utils import RequestHandler
from distributed.utils import offload
from tornado import web

from scalable.harmless import one_line
from scalable.model.overview import Events, Overview, PoolOverview, TaskView
from scalable.palette import css_variables, numbers_of
from scalable.protocol.handlers import Handler
from scalable.units import format_bytes, format_duration
from scalable.views.cluster_text import BLOCKS, facts, titled
from scalable.views.columns import UNTAGGED_NAME, failures_by_cause, tables_of
from scalable.views.explanation import short_key
from scalable.views.page import failure, labelled, progress, table, to_json
from scalable.views.tables import Column, Listing

# Data ---------------------------------------------------------------------------------------------

#: Charts of a pool: title, unit, and names of the lines with their places in a sample.
CHARTS = (
    {"title": "used slots", "unit": "slots", "series": [["used", 2], ["slots", 3]]},
    {"title": "queued and blocked", "unit": "tasks", "series": [["queued", 4], ["blocked", 5]]},
)
RUNNING = Listing(
    (
        Column("task", "task", attrgetter("name")),
        Column("key", "key", attrgetter("key"), text=lambda task: short_key(task.key)),
        Column("bundle", "tasks in bundle", lambda task: task.bundle * (task.bundle > 1) or None,
               "count", optional=True),
        Column("pool", "pool", lambda task: task.tag or UNTAGGED_NAME),
        Column("worker", "worker", attrgetter("worker")),
        Column("since", "running for", attrgetter("since_s"), "duration"),
    ),
    key=attrgetter("key"),
    displays=("page",),
    empty="no running tasks",
)  # fmt: skip


def live_document(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the page of a cluster from the answer of its scheduler.
    All its numbers come from one overview. Events are those since the last answer.
    """
    overview, events = Overview.from_dict(answer["overview"]), Events.from_dict(answer["events"])
    cluster = overview.cluster
    state, reason = one_line(cluster.get("state") or "?"), cluster.get("reason")
    told, shown_of = facts(overview, "page"), _shown_of(overview)
    hidden = ["progress", "tasks", *([] if overview.remembered else ["cached"])]
    shown = [
        (heading.capitalize(), words) for n, (heading, words) in told.items() if n not in hidden
    ]
    tables = tables_of(overview, "page", events)
    decisions = tables["decisions"].to_dict()
    page = {
        "live": True,
        "name": one_line(cluster.get("name") or "cluster of this process"),
        "state": {
            "text": f"{state}: {one_line(reason)}" if reason else state,
            "look": "good" if state == "running" else "bad",
        },
        "started": cluster.get("started_at"),
        "at": overview.at,
        "progress": progress(overview.counts, shown),
        "parts": {
            "pools": table(tables["pools"]),
            "tasks": table(tables["tasks"], filter=True),
            "running": [
                *table(RUNNING.table(overview.running, "page", overview.at), links=True),
                *([{"text": shown_of, "look": "dim"}] if shown_of else []),
            ],
            "managers": table(tables["managers"]),
        },
        # As the spans of events, without an end.
        "running": [
            [task.worker, task.name, overview.at - task.since_s, None, False, task.bundle, task.key]
            for task in overview.running
        ],
        "running_shown": shown_of,
        "charts": CHARTS,
        "sample": {tag: _sample(pool) for tag, pool in overview.pools.items()},
        "decisions": {**decisions, "rows": []},
    }
    changes = zip(reversed(decisions["rows"]), events.decisions, strict=True)
    return {
        "page": page,
        "events": {
            "seq": events.seq,
            "spans": events.spans,
            "samples": events.samples,
            "failures": [
                failure(row, cause) for row in events.failures for cause in failures_by_cause([row])
            ],
            "decisions": [
                {**row, "at": change.get("timestamp"), "grows": _grows(change)}
                for row, change in changes
            ],
        },
    }


def _shown_of(overview: Overview) -> str:
    """Return how many running tasks are shown, such as ``50 of 120 running tasks``. "" for all."""
    told, running = len(overview.running), overview.counts.running
    return f"{told} of {running} running tasks" if told < running else ""


def _sample(pool: PoolOverview) -> list[int]:
    """Return a pool as in the samples of :class:`Events`."""
    status = pool.status
    return [status.wanted, status.running, pool.used_slots, pool.slots, pool.queued, pool.blocked]


def _grows(change: Mapping[str, Any]) -> bool:
    return (change.get("to") or 0) >= (change.get("from") or 0)


_ENDED = frozenset({"done", "failed", "cancelled"})


def task_document(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the page of one task from its view, as in :meth:`.TaskView.to_dict`."""
    view = TaskView.from_dict(told)
    error = f"{view.failure_class}: {view.message}" if view.failure_class else None
    sentence = f"{view.sentence}; {view.advice}" if view.advice else view.sentence
    return {
        "state": view.state,
        "look": "bad" if view.state == "failed" else "dim",
        "ended": view.state in _ENDED,
        "pieces": [
            {"facts": [fact for fact in _facts(view) if fact[1] not in (None, "", 0)]},
            *([{"text": sentence}] if sentence else []),
            *labelled([("Arguments", view.arguments), ("Error", error), ("Where", view.frame)]),
            *labelled(titled(BLOCKS, vars(view))),
            *({"text": note, "look": "dim"} for note in view.notes),
        ],
    }


def _facts(view: TaskView) -> list[list[Any]]:
    def seconds(value: float | None) -> str | None:
        return None if value is None else format_duration(value)

    def size(value: int | None) -> str | None:
        return None if value is None else format_bytes(value)

    return [
        ["Task", view.name],
        ["Pool", view.tag],
        ["Worker", view.worker],
        ["Attempts", view.tries],
        ["Ran again because of", view.again],
        ["Started", view.began, "time"],
        ["Finished", view.ended, "time"],
        ["Running time", seconds(view.duration_s)],
        ["Queue", seconds(view.queued_s)],
        ["Transfer", seconds(view.transfer_s or None)],
        ["CPU time", seconds(view.cpu_s)],
        ["Peak memory", size(view.peak_memory)],
        ["Result", size(view.result_bytes)],
        ["Bundle", f"{view.bundle} tasks of an executor" if view.bundle else None],
        ["Position in the bundle", None if view.position is None else str(view.position)],
    ]


# Routes -------------------------------------------------------------------------------------------

#: Content security policy: parts come from the page's own server, and no script in data runs.
SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


class _Guarded(RequestHandler):
    """Base of the dashboard's handlers, which sets the headers of all responses."""

    def set_default_headers(self) -> None:
        self.set_header("Content-Security-Policy", SECURITY_POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")


class PageFile(_Guarded):
    """One file of the page."""

    def get(self, name: str = "page.html") -> None:
        static = files("scalable.watch.dashboard") / "static"
        text = (static / name).read_text(encoding="utf-8")
        if name == "page.css":
            text = css_variables() + text
        elif name == "page.js":  # one module of two files, as in a report
            text = (static / "timeline.js").read_text(encoding="utf-8") + text
        kind = _TYPES[name.rpartition(".")[2]]
        self.set_header("Content-Type", f"{kind}; charset=utf-8")
        self.finish(text)


class Directory(_Guarded):
    """Redirect from the page's address without the final slash."""

    def get(self) -> None:
        # Not by `redirect`, which uses the whole path: behind a proxy it is another one.
        self.set_status(302)
        self.set_header("Location", "scalable/")


class OverviewRoute(_Guarded):
    """The page's data about the cluster and its new events, as JSON."""

    async def get(self) -> None:
        """Send the overview, and the events after number ``since``."""
        made = self.server.handlers.get(Handler.OVERVIEW.value)
        if made is None:
            raise web.HTTPError(404, "this scheduler has no overviews")
        since = self.get_query_argument("since", "0")
        if not since.isdecimal() or len(since) > 15:
            raise web.HTTPError(400, "since is not a number")
        answer: Any = await made(since=int(since))
        overview = answer["overview"]
        names = {task["name"] for task in (*overview["tasks"], *overview["running"])}
        names |= {span[1] for span in answer["events"]["spans"]}
        beside = bool(getattr(self.server, "pages_of_dask", True))
        more = {"colours": numbers_of(names), "pages_of_dask": beside}
        self.set_header("Content-Type", "application/json; charset=utf-8")
        # Many pools and names take too long for one turn of the scheduler's loop.
        self.finish(await offload(lambda: to_json(live_document(answer) | more)))


class Call(_Guarded):
    """The details of one task, as JSON."""

    async def get(self) -> None:
        """Send the details of the task with the given ``key`` and ``position`` in its bundle."""
        asked = self.server.handlers.get(Handler.CALL.value)
        if asked is None:
            raise web.HTTPError(404, "this scheduler has no views of tasks")
        key, position = self.get_query_argument("key", ""), self.get_query_argument("position", "")
        if position and (not position.isdecimal() or len(position) > 9):
            raise web.HTTPError(400, "position is not a number")
        view = await asked(key=key, position=int(position) if position else None)
        self.finish(task_document(view))


routes: list[tuple[str, type[web.RequestHandler], dict[str, Any]]] = [
    (r"scalable", Directory, {}),
    (r"scalable/", PageFile, {}),
    (r"scalable/(page\.(?:css|js))", PageFile, {}),
    (r"scalable/overview\.json", OverviewRoute, {}),
    (r"scalable/call\.json", Call, {}),
]
