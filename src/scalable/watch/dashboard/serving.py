"""Dashboard served by this process, for a scheduler whose HTTP server is unreachable."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from tornado import web
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from scalable.protocol.addresses import LOOPBACK
from scalable.protocol.handlers import Handler, request
from scalable.protocol.servers import PARAMETER, guard
from scalable.watch.dashboard.routes import routes

logger = logging.getLogger("scalable.watch.dashboard")

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
    application = web.Application([(rf"/{path}", page, arguments) for path, page, _ in routes])
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
