"""HTTP server of a cluster that answers only requests with the cluster's token."""

from __future__ import annotations

import hmac
import logging
from typing import Any

from distributed.http.routing import RoutingApplication
from tornado import web
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest, url_concat

from scalable.protocol.dask_seams.scheduler import http_application
from scalable.scheduler.pool_scheduler import PoolScheduler

logger = logging.getLogger("scalable.scheduler")

COOKIE = "scalable_token"
PARAMETER = "token"


class _Refused(web.RequestHandler):
    def prepare(self) -> None:
        self.set_status(403)
        self.finish("This page needs the token of its cluster: see `scalable status`.\n")


class _Admitted(web.RequestHandler):
    """Handler that stores the token in a cookie and redirects to the page without the token."""

    def prepare(self) -> None:
        token = self.get_query_argument(PARAMETER)
        self.set_cookie(COOKIE, token, httponly=True, samesite="Strict", path="/")
        self.set_header("Referrer-Policy", "no-referrer")
        rest = [
            (name, value.decode(errors="replace"))
            for name, values in self.request.query_arguments.items()
            if name != PARAMETER
            for value in values
        ]
        # A browser takes the first part of a path that begins with two slashes for a host.
        self.redirect(url_concat("/" + self.request.path.lstrip("/"), rest))


def admits(request: HTTPServerRequest, token: str) -> tuple[bool, bool]:
    """Return whether a request has the token as a parameter, and whether as a cookie."""
    given = request.query_arguments.get(PARAMETER, [b""])[-1]
    cookie = request.cookies.get(COOKIE)
    kept = cookie.value.encode() if cookie is not None else b""
    expected = token.encode()
    return hmac.compare_digest(given, expected), hmac.compare_digest(kept, expected)


def guard(application: RoutingApplication, token: str) -> None:
    """Let an application answer only requests that have the token."""
    find = application.find_handler

    def find_admitted(request: HTTPServerRequest, **kwargs: Any) -> Any:
        by_parameter, by_cookie = admits(request, token)
        if by_cookie and not by_parameter:
            return find(request, **kwargs)
        handler = _Admitted if by_parameter and request.method == "GET" else _Refused
        if handler is _Refused:
            logger.debug("a request for %s is refused: it has no valid token", request.path)
        return application.get_handler_delegate(request, handler)

    application.find_handler = find_admitted  # type: ignore[method-assign]


class GuardedScheduler(PoolScheduler):
    """A scheduler whose HTTP server, if it has one, answers only requests with a token.

    Parameters
    ----------
    http_token
        The token; None for a server without a token.
    """

    http_server: HTTPServer

    def __init__(self, *args: Any, http_token: str | None = None, **kwargs: Any) -> None:
        self._http_token = http_token
        super().__init__(*args, **kwargs)

    def start_http_server(
        self, routes: Any, dashboard_address: Any, default_port: int = 0, ssl_options: Any = None
    ) -> None:
        """Open the HTTP server if an address was given, and guard it."""
        super().start_http_server(routes, dashboard_address, default_port, ssl_options)
        if dashboard_address and self._http_token is not None:
            guard(http_application(self), self._http_token)
