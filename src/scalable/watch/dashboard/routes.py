"""Pages and data of the dashboard. Dask's HTTP server requires the token for them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from distributed.http.utils import RequestHandler
from distributed.utils import offload
from tornado import web

from scalable.palette import css_variables, numbers_of
from scalable.protocol.handlers import Handler
from scalable.views.page import to_json
from scalable.watch.dashboard.document import live_document, task_document

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
        # Many pools and names take too long for one turn of the scheduler's loop.
        document = await offload(live_document, answer)
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(to_json({**document, "colours": numbers_of(names), "pages_of_dask": beside}))


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
