"""Additions to Dask's servers: guarded HTTP, private directories, ports, and safe profiles."""

from __future__ import annotations

import errno
import functools
import gc
import hashlib
import hmac
import inspect
import logging
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dask
from distributed import Scheduler, Worker
from distributed.comm.addressing import (
    parse_address,
    parse_host_port,
    unparse_address,
    unparse_host_port,
)
from distributed.core import Server
from distributed.utils import format_dashboard_link
from tornado import web
from tornado.httputil import HTTPServerRequest, url_concat
from tornado.ioloop import IOLoop

from scalable.protocol.addresses import ListenAddress, link_host, listen_address
from scalable.protocol.private_directory import PrivateDirectory
from scalable.units import counted

logger = logging.getLogger("scalable.http")

PARAMETER = "token"
#: Seconds from the first request with a wrong token to a line in the log, and between two lines.
FIRST_LINE_S, APART_S = 1.0, 60.0
_REFUSAL = """\
403: this page needs the token of its cluster.

Open the link that contains the token. The owner of the cluster sees it
  in a shell, with: scalable dashboard NAME
  in Python, with: session.cluster.dashboard_link
Open the link once in each browser; a cookie then keeps the token.
Programs send the token in the header "Authorization: Bearer TOKEN".
"""


class _Refused(web.RequestHandler):
    def prepare(self) -> None:
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(_REFUSAL)


class _Admitted(web.RequestHandler):
    """Stores the token in a cookie, and redirects to the URL without the token."""

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
    """Counts requests with a wrong token, and logs at most one line per minute."""

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
            "%s to the dashboard refused because of a wrong token, the last from %.100s",
            counted(self._count, "request"),
            self._source,
        )
        self._count = 0
        self._later(APART_S, self._tell)


def cookie_name(token: str) -> str:
    """Return a token's cookie name, unique because browsers share cookies between ports."""
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
    application.settings["log_function"] = lambda _: None


class GuardedHttp:
    """Base class of schedulers and workers whose HTTP server requires a token.
    Opens a port only for a given address, or on loopback in classes from :func:`protected`.
    """

    services: dict[str, Any]
    http_application: Any
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
        guard(self.http_application, self._http_token)

    @property
    def live_page(self) -> str:
        """Link to the dashboard with the token, or ``""`` without a dashboard."""
        server = self.services.get("dashboard")
        if self._listens is None or server is None:
            return ""
        link = format_dashboard_link(link_host(self._listens.host), server.port)
        return f"{link}{'&' if '?' in link else '?'}{PARAMETER}={quote(self._http_token)}"


class GuardedWorker(GuardedHttp, Worker):
    """Dask's worker, for a ``Nanny``, with an HTTP server on loopback that requires a token."""

    _opens_unasked = True


# Private directories ------------------------------------------------------------------------------


class PrivateNode:
    """A server node with a private local directory, inside ``local_directory`` if given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        directory = PrivateDirectory(kwargs.pop("local_directory", None))
        self._private_directory = directory
        try:
            with ExitStack() as stack:
                # No other process uses the directory, so that Dask need not lock or purge it.
                stack.enter_context(dask.config.set({"distributed.worker.use-file-locking": False}))
                if accepts(type(self), "local_directory", within=Server):
                    kwargs["local_directory"] = str(directory.path)
                else:
                    place = {"temporary-directory": str(directory.path)}
                    stack.enter_context(dask.config.set(place))
                super().__init__(*args, **kwargs)
            # Dask's directory inside is removed with this one. Its own removal may come later, or
            # in a fork, and would print that the directory does not exist.
            if (inside := getattr(self, "_workdir", None)) is not None:
                inside.release()
                Path(inside.dir_path).mkdir(mode=0o700)
                vars(self).update(_workdir=None)
        except BaseException:
            directory.release()
            raise

    async def close(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().close(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._private_directory.release()


@functools.cache
def protected(cls: type[Any]) -> type[Any]:
    """Return a class of Dask's nodes, or a subclass of it, with a private directory.
    The HTTP server of a scheduler or a worker requires a token, and by default is on loopback.
    """
    bases: tuple[type[Any], ...] = ()
    if issubclass(cls, Server) and not issubclass(cls, PrivateNode):
        bases += (PrivateNode,)
    if issubclass(cls, (Scheduler, Worker)) and not issubclass(cls, GuardedHttp):
        bases += (GuardedHttp,)
    if not bases:
        return cls
    copied = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    own = {"_opens_unasked": True} if GuardedHttp in bases else {}
    return type(cls.__name__, (*bases, cls), copied | own)


def accepts(
    cls: type[Any], keyword: str, *, method: str = "__init__", within: type[Any] = object
) -> bool:
    """Return whether a method, or one of a base to which it passes others on, accepts a keyword.
    Of Dask's scheduler, only the bases ``within`` Server stop that.
    """
    for each in cls.__mro__:
        if method in vars(each):
            parameters = inspect.signature(vars(each)[method]).parameters
            if keyword in parameters:
                return True
            ends = not any(p.kind is p.VAR_KEYWORD for p in parameters.values())
            if ends and issubclass(each, within):
                return False
    return False


# Ports --------------------------------------------------------------------------------------------

LARGEST_PORT = 65535


class NextFreePort(Server):
    """Dask server that listens on the first free of ``ports_tried`` ports, without a race."""

    def __init__(self, *args: Any, ports_tried: int = 1, **kwargs: Any) -> None:
        self._ports_tried = ports_tried
        super().__init__(*args, **kwargs)

    async def listen(self, port_or_addr: Any = None, *args: Any, **kwargs: Any) -> None:
        addresses = _following(port_or_addr, self._ports_tried)
        for address in addresses[:-1]:
            # Checked first, because a failing server leaves its sockets to the garbage collector.
            if _is_taken(address):
                logger.debug("%s is taken", address)
                continue
            try:
                await super().listen(address, *args, **kwargs)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                logger.debug("another program has just taken %s", address)
            else:
                return
        await super().listen(addresses[-1], *args, **kwargs)


def _is_taken(address: str) -> bool:
    host, port = parse_host_port(parse_address(address)[1])
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, _, _, _, place in found:
        try:
            socket.create_server(place, family=family).close()
        except OSError as error:
            # The server judges other errors, such as those of a machine without IPv6.
            if error.errno == errno.EADDRINUSE:
                return True
    return False


def _following(address: Any, count: int) -> list[Any]:
    """Return an address, followed by the same address with the next ports."""
    if not isinstance(address, str):
        return [address]
    scheme, location = parse_address(address)
    if scheme not in ("tcp", "tls"):
        return [address]
    host, port = parse_host_port(location, 0)
    if not port:
        return [address]
    ports = range(port, min(port + count, LARGEST_PORT + 1))
    return [unparse_address(scheme, unparse_host_port(host, number)) for number in ports]


# Stacks of threads --------------------------------------------------------------------------------

_reading = threading.Lock()


def read_frames_without_collection() -> None:
    """Prevent garbage collection in ``sys._current_frames``. Idempotent.
    Before Python 3.13, the function holds a lock that an exiting thread needs. A collection that
    runs Python code at that time hangs the process.
    """
    read = sys._current_frames  # noqa: SLF001 - public but for its name
    if sys.version_info >= (3, 13) or getattr(read, "collects_nothing", False):
        return

    @wraps(read)
    def frames() -> dict[int, Any]:
        with _reading:
            collects = gc.isenabled()
            gc.disable()
            try:
                return read()
            finally:
                if collects:
                    gc.enable()

    frames.collects_nothing = True  # type: ignore[attr-defined]
    sys._current_frames = frames  # noqa: SLF001
