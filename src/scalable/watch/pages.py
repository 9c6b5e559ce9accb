"""Pages of a scheduler: the dashboard with its data, and the metrics.
Dask's HTTP server, which mounts ``routes``, requires the token for them. Another process can serve
the dashboard of a scheduler whose HTTP server is unreachable.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from distributed.http.utils import RequestHandler
from distributed.utils import offload
from tornado import web
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from scalable.dask_compat.scheduler_extensions import dask_metrics_handler
from scalable.harmless import one_line
from scalable.model.overview import Events, Overview, TaskView
from scalable.palette import numbers_of
from scalable.protocol.addresses import LOOPBACK
from scalable.protocol.handlers import Handler, request
from scalable.protocol.servers import PARAMETER, guard
from scalable.units import format_bytes, format_duration
from scalable.views.cluster_text import BLOCKS, facts, sample_of, titled
from scalable.views.columns import UNTAGGED_NAME, failures_by_cause, tables_of
from scalable.views.explanation import short_key
from scalable.views.page import failure, labelled, page_file, progress, table, to_json
from scalable.views.tables import Column, Listing

logger = logging.getLogger("scalable.watch")

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
        "sample": sample_of(overview.pools),
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
        kind = _TYPES[name.rpartition(".")[2]]
        self.set_header("Content-Type", f"{kind}; charset=utf-8")
        self.finish(page_file(name))


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


#: Pages of the dashboard by their paths.
DASHBOARD: dict[str, type[Any]] = {
    r"scalable": Directory,
    r"scalable/": PageFile,
    r"scalable/(page\.(?:css|js))": PageFile,
    r"scalable/overview\.json": OverviewRoute,
    r"scalable/call\.json": Call,
}


# Metrics ------------------------------------------------------------------------------------------

#: Maximum number of Dask's task prefixes for which its own metrics are written. They have more than
#: a dozen values for each prefix, which would block the scheduler and fill Prometheus.
MOST_PREFIXES = 100
_LEFT_OUT = (
    "# Dask's own metrics are left out: this scheduler has {} task prefixes, but they are "
    "written for {} at most\n"
)
_MISSING = "# There are no metrics: prometheus-client is missing on the scheduler's machine "
_MISSING += "(pip install prometheus-client)\n"


class Metrics(dask_metrics_handler()):  # type: ignore[misc]
    """Dask's metrics of the scheduler and its process, and the metrics of the overview."""

    async def get(self) -> None:
        self.set_header("Cache-Control", "no-store")
        try:
            from scalable.watch.metrics import exposition
        except ModuleNotFoundError:
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.write(_MISSING)
            return
        prefixes = len(self.server.task_prefixes)
        if prefixes <= MOST_PREFIXES:
            super().get()
        else:
            self.write(_LEFT_OUT.format(prefixes, MOST_PREFIXES))
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        made = self.server.handlers.get(Handler.OVERVIEW.value)
        if made is not None:  # a scheduler without pools has Dask's metrics only
            overview = (await made(lasting=True))["overview"]
            # In a thread, so that the scheduler continues.
            self.write(await asyncio.to_thread(lambda: exposition(Overview.from_dict(overview))))


_PAGES: dict[str, type[Any]] = {**DASHBOARD, "metrics": Metrics}
routes: list[tuple[str, type[Any], dict[str, Any]]] = [(at, _PAGES[at], {}) for at in _PAGES]

# The dashboard from another process ---------------------------------------------------------------

#: Timeout in seconds of a request to the scheduler.
ANSWER_TIMEOUT_S = 10.0


class FarScheduler:
    """Stand-in for a remote scheduler that answers the page's requests.
    ``pem`` has the arguments of ``distributed.Security``. ``handlers`` maps names to coroutine
    functions. ``pages_of_dask`` is False, since Dask's own pages are not served.
    """

    pages_of_dask = False

    def __init__(self, address: str, pem: Mapping[str, str]) -> None:
        from distributed.core import rpc

        from scalable.protocol.credentials import security_of

        connect: Any = rpc
        security: Any = security_of(pem)
        arguments = security.get_connection_args("client")
        self._comm = connect(address, timeout=ANSWER_TIMEOUT_S, connection_args=arguments)
        self.handlers = {
            handler.value: self._bounded(handler) for handler in (Handler.OVERVIEW, Handler.CALL)
        }

    def _bounded(self, handler: Handler) -> Callable[..., Any]:
        async def asked(**arguments: Any) -> Any:
            try:
                answer = request(self._comm, handler, **arguments)
                return await asyncio.wait_for(answer, ANSWER_TIMEOUT_S)
            except (OSError, TimeoutError, ValueError) as error:
                logger.debug("the scheduler does not answer: %r", error)
                raise web.HTTPError(503, "the scheduler does not answer") from error

        return asked

    async def close(self) -> None:
        await self._comm.close_rpc()


def page_application(source: Any, token: str) -> web.Application:
    """Return an application that serves the dashboard of ``source`` to holders of the token."""
    arguments = {"dask_server": source}
    application = web.Application(
        [(rf"/{path}", page, arguments) for path, page in DASHBOARD.items()]
    )
    guard(application, token)
    return application


def serve_page(address: str, pem: Mapping[str, str], shown: Callable[[str], None]) -> None:
    """Serve the dashboard on a free loopback port until SIGINT or SIGTERM.
    ``shown`` is called with the link, which contains a new token, as soon as the page responds.
    """
    with suppress(KeyboardInterrupt):
        asyncio.run(_served(address, pem, shown))


async def _served(address: str, pem: Mapping[str, str], shown: Callable[[str], None]) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    scheduler, token = FarScheduler(address, pem), secrets.token_urlsafe(24)
    server = HTTPServer(page_application(scheduler, token))
    sockets = bind_sockets(0, LOOPBACK)
    server.add_sockets(sockets)
    port = sockets[0].getsockname()[1]
    try:
        shown(f"http://{LOOPBACK}:{port}/scalable/?{PARAMETER}={quote(token)}")
        await ended.wait()
    finally:
        server.stop()
        await server.close_all_connections()
        await scheduler.close()


# Links --------------------------------------------------------------------------------------------


def page_link(link: str) -> str:
    """Derive the link to a cluster's dashboard, with the token, from the link to Dask's pages."""
    parts = urlsplit(link)
    prefix = parts.path.rpartition("/")[0]
    return urlunsplit(parts._replace(path=f"{prefix}/scalable/"))


def ssh_command(link: str, host: str, user: str) -> str:
    """Return the command that forwards a page from ``host`` to the user's own machine."""
    parts = urlsplit(link)
    return f"ssh -N -L {parts.port}:{parts.hostname}:{parts.port} {user}@{host}"
