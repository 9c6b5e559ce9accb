"""HTTP servers of schedulers and workers that listen on loopback and require a token."""

from __future__ import annotations

import functools
import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from distributed.utils import format_dashboard_link
from tornado import web
from tornado.httputil import HTTPServerRequest, url_concat
from tornado.ioloop import IOLoop

from scalable.dask_compat.scheduler import http_application
from scalable.protocol.addresses import ListenAddress, link_host, listen_address
from scalable.units import counted

logger = logging.getLogger("scalable.http")

PARAMETER = "token"
#: Seconds from the first request with a wrong token to a line in the log, and between two lines.
FIRST_LINE_S, APART_S = 1.0, 60.0
_REFUSAL = """\
403: this page needs the token of its cluster.

Open the link that carries the token. The owner of the cluster sees it
  in a shell, with: scalable dashboard NAME
  in Python, with: session.cluster.dashboard_link
The link needs to be opened once in each browser; a cookie remembers the token.
Programs send the token in the header "Authorization: Bearer TOKEN".
"""


class _Refused(web.RequestHandler):
    def prepare(self) -> None:
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(_REFUSAL)


class _Admitted(web.RequestHandler):
    """Stores the token in a cookie, and redirects to the page without the token in its URL."""

    def prepare(self) -> None:
        token = self.get_query_argument(PARAMETER)
        self.set_cookie(cookie_name(token), token, httponly=True, samesite="Strict", path="/")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")
        rest = [
            (name, value.decode(errors="replace"))
            for name, values in self.request.query_arguments.items()
            if name != PARAMETER
            for value in values
        ]
        # Relative, because a proxy may have removed the path's prefix. With the dot it is never
        # read as another host, as a path that starts with two slashes is.
        page = self.request.path.rpartition("/")[2]
        self.set_status(302)
        self.set_header("Location", url_concat(f"./{page}", rest))
        self.finish()


class WrongTokens:
    """Counts requests with a wrong token, and logs at most one line per minute using ``later``."""

    def __init__(self, later: Callable[[float, Callable[[], None]], Any]) -> None:
        self._later = later
        self._count = 0
        self._source = ""
        self._waits = False

    def add(self, source: str | None) -> None:
        self._count, self._source = self._count + 1, str(source)
        if not self._waits:
            self._waits = True
            self._later(FIRST_LINE_S, self._tell)

    def _tell(self) -> None:
        if not self._count:
            self._waits = False
            return
        logger.warning(
            "%s to the live page refused for a wrong token, the last from %.100s",
            counted(self._count, "request"),
            self._source,
        )
        self._count = 0
        self._later(APART_S, self._tell)


def cookie_name(token: str) -> str:
    """Return a token's own cookie name: browsers send a host's cookies to all of its ports."""
    return f"scalable_{hashlib.sha256(token.encode()).hexdigest()[:16]}"


def admits(request: HTTPServerRequest, token: str) -> tuple[bool, bool]:
    """Return whether a request has the token as a parameter, and whether as a cookie."""
    given = request.query_arguments.get(PARAMETER, [b""])[-1]
    cookie = request.cookies.get(cookie_name(token))
    kept = cookie.value.encode() if cookie is not None else b""
    expected = token.encode()
    return hmac.compare_digest(given, expected), hmac.compare_digest(kept, expected)


def bears(request: HTTPServerRequest, token: str) -> bool:
    """Return whether a request has the header ``Authorization: Bearer TOKEN``."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    known = hmac.compare_digest(given.strip().encode(errors="replace"), token.encode())
    return known and scheme.lower() == "bearer"


def guard(application: web.Application, token: str) -> None:
    """Make a Tornado application refuse requests, including WebSockets, without the token."""
    find = application.find_handler
    wrong = WrongTokens(lambda seconds, tell: IOLoop.current().call_later(seconds, tell))

    def find_admitted(request: HTTPServerRequest, **kwargs: Any) -> Any:
        by_parameter, by_cookie = admits(request, token)
        if (by_cookie and not by_parameter) or bears(request, token):
            return find(request, **kwargs)
        tried = cookie_name(token) in request.cookies or "Authorization" in request.headers
        tried = tried or bool(request.query_arguments.get(PARAMETER))
        if tried and not by_parameter:
            wrong.add(request.remote_ip)
        handler = _Admitted if by_parameter and request.method == "GET" else _Refused
        return application.get_handler_delegate(request, handler)

    application.find_handler = find_admitted  # type: ignore[method-assign]
    # Tornado would log the URL of each request, and the URL may contain the token.
    application.settings["log_function"] = _log_nothing


def _log_nothing(handler: web.RequestHandler) -> None:
    pass


class GuardedHttp:
    """Base class of schedulers and workers whose HTTP server requires a token.

    A port is opened only if an address is given, whereas Dask's scheduler always opens one on every
    interface. Classes made by :func:`guarded` always open one, on loopback by default. Without
    ``http_token`` the token is random.
    """

    services: dict[str, Any]
    _opens_unasked = False

    def __init__(self, *args: Any, http_token: str | None = None, **kwargs: Any) -> None:
        self._http_token = http_token or secrets.token_urlsafe(24)
        self._listens: ListenAddress | None = None
        super().__init__(*args, **kwargs)

    def start_http_server(
        self, routes: Any, dashboard_address: Any, default_port: int = 0, ssl_options: Any = None
    ) -> None:
        if not dashboard_address and not self._opens_unasked:
            return
        given = dashboard_address or default_port
        # Dask accepts several addresses, in a list or separated by commas.
        several = given if isinstance(given, list) else str(given).split(",")
        addresses = [listen_address(written) for written in several]
        self._listens = addresses[0]
        super().start_http_server(  # type: ignore[misc]
            routes, [tuple(address) for address in addresses], default_port, ssl_options
        )
        guard(http_application(self), self._http_token)

    @property
    def live_page(self) -> str:
        """Link to the dashboard with the token, empty if there is no dashboard."""
        server = self.services.get("dashboard")
        if self._listens is None or server is None:
            return ""
        link = format_dashboard_link(link_host(self._listens.host), server.port)
        return f"{link}{'&' if '?' in link else '?'}{PARAMETER}={quote(self._http_token)}"


@functools.cache
def guarded(cls: type[Any]) -> type[Any]:
    """Return a subclass whose HTTP server requires a token, by default on loopback."""
    if issubclass(cls, GuardedHttp):
        return cls
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (GuardedHttp, cls), {**names, "_opens_unasked": True})
