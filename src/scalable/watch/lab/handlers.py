"""Handlers of Jupyter's server: Dask's extension with scalable's clusters added.

``tests/unit/test_lab_seams.py`` tests the parts of Dask's extension and of jupyter-server-proxy
that are used.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from urllib.parse import parse_qsl, urlencode

import dask_labextension
from dask_labextension.clusterhandler import DaskClusterHandler
from dask_labextension.dashboardhandler import DaskDashboardHandler
from dask_labextension.manager import manager
from jupyter_server_proxy.handlers import ProxyHandler
from tornado import web
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from scalable.errors import ScalableError
from scalable.protocol.servers import PARAMETER
from scalable.watch.lab.sidebar import PAGES, Page, Seen, Sidebar, page_of, row

# Handlers -----------------------------------------------------------------------------------------

logger = logging.getLogger("scalable.watch.lab")

#: Key of the sidebar in the settings of Jupyter's web application.
SETTING = "scalable_sidebar"
#: Seconds for a connection to a scheduler's pages, and for a page.
CONNECT_S, PAGE_S = 10.0, 60.0
#: Headers of a browser that are sent to the schedulers' pages. Cookies and tokens of Jupyter are
#: not among them.
PASSED = ("Accept", "Accept-Encoding", "Accept-Language", "If-None-Match", "Origin", "User-Agent")
#: Maximum bytes of a message of a WebSocket.
LONGEST_MESSAGE = 64 * 2**20


def install() -> None:
    """Make Dask's extension serve its addresses with the handlers of this module."""
    dask_labextension.DaskClusterHandler = ClusterHandler
    dask_labextension.DaskDashboardHandler = PageHandler


def start(settings: dict[str, Any]) -> None:
    """Start watching the clusters, for a web application with these settings."""
    settings[SETTING] = Sidebar(settings["base_url"])
    settings[SETTING].begin()


class ClusterHandler(DaskClusterHandler):  # type: ignore[misc]
    """List of clusters, and the actions of the sidebar's buttons."""

    @property
    def _sidebar(self) -> Sidebar:
        sidebar: Sidebar = self.settings[SETTING]
        return sidebar

    async def _ours(self, cluster_id: str) -> Seen | None:
        return await self._sidebar.find(cluster_id) if cluster_id else None

    @web.authenticated
    async def get(self, cluster_id: str = "") -> None:
        if not cluster_id:
            ours = await self._sidebar.models()
            self.finish(json.dumps([*ours, *self._sidebar.not_ours(manager.list_clusters())]))
        elif seen := await self._ours(cluster_id):
            self.finish(json.dumps(self._row(seen)))
        else:
            await super().get(cluster_id)

    @web.authenticated
    async def put(self, cluster_id: str = "") -> None:
        """Start a cluster with the factory of Dask's configuration."""
        await super().put(cluster_id)
        await self._sidebar.clusters(now=True)

    @web.authenticated
    async def delete(self, cluster_id: str) -> None:
        """Stop a cluster that was started here, or disconnect from another one."""
        seen = await self._ours(cluster_id)
        if seen is None:
            await super().delete(cluster_id)
            return
        try:
            await self._sidebar.leave(seen)
        except (ScalableError, FileNotFoundError) as error:
            self._refuse(error)
        else:
            self.set_status(204)
            self.finish()

    @web.authenticated
    async def patch(self, cluster_id: str) -> None:
        """Scale a cluster, or make it adaptive."""
        seen = await self._ours(cluster_id)
        if seen is None:
            await super().patch(cluster_id)
            return
        wanted = self.get_json_body() or {}
        try:
            if wanted.get("adapt") is not None:
                await self._sidebar.adapt(seen, wanted["adapt"])
            else:
                await self._sidebar.scale(seen, wanted.get("workers"))
        except (ScalableError, FileNotFoundError) as error:
            self._refuse(error)
        else:
            changed = (await self._sidebar.clusters(now=True)).get(cluster_id)
            self.finish(json.dumps(self._row(changed or seen)))

    def _row(self, seen: Seen) -> dict[str, Any]:
        return row(seen.status, seen.sizes, self._sidebar.base_url)

    def _refuse(self, error: Exception) -> None:
        # The sidebar shows the message in a dialog.
        self.set_status(409)
        self.finish({"message": str(error), "reason": "", "traceback": ""})


class PageHandler(DaskDashboardHandler):  # type: ignore[misc]
    """Pages of a cluster's scheduler, below the address of Jupyter's server."""

    _page: Page | None = None

    async def _is_ours(self, cluster_id: str) -> bool:
        """Find a cluster's pages, and return whether the cluster is scalable's."""
        sidebar: Sidebar = self.settings[SETTING]
        seen = await sidebar.find(cluster_id)
        if seen is None:
            return False
        try:
            self._page = await asyncio.to_thread(page_of, seen)
        except (ScalableError, OSError) as error:
            raise web.HTTPError(404, "%s", error) from error
        self.proxy_base = f"{PAGES}/{cluster_id}"
        self.host_allowlist = [self._page.host]
        self.rewrite_response = (_without_cookies,)
        return True

    async def proxy(self, cluster_id: str, proxied_path: str) -> None:
        """Answer a request of any method. The pages of our clusters are read-only."""
        if not await self._is_ours(cluster_id):
            await super().proxy(cluster_id, proxied_path)
            return
        if self.request.method not in ("GET", "HEAD"):
            raise web.HTTPError(405, "the pages of a cluster are read-only")
        assert self._page is not None
        # DaskDashboardHandler.proxy takes the id of a cluster in Dask's list instead.
        await ProxyHandler.proxy(self, self._page.host, self._page.port, proxied_path)

    async def open(self, cluster_id: str, proxied_path: str) -> None:
        if not await self._is_ours(cluster_id):
            await super().open(cluster_id, proxied_path)
            return
        assert self._page is not None
        request = HTTPRequest(
            self._page.url(proxied_path, self._query(), socket=True),
            headers=self.proxy_request_headers(),
            connect_timeout=CONNECT_S,
            ssl_options=self._page.tls,
        )
        self.ws = await websocket_connect(
            request,
            on_message_callback=self._relay,
            subprotocols=self._requested_subprotocols,
            max_message_size=LONGEST_MESSAGE,
        )

    def _relay(self, message: str | bytes | None) -> None:
        if message is None:
            self.close()
        elif self.ws_connection is not None:
            self._record_activity()
            self.write_message(message, binary=isinstance(message, bytes))

    # Requests to the scheduler --------------------------------------------------------------------

    def _query(self) -> str:
        """Return the query without tokens, since these would be Jupyter's."""
        pairs = parse_qsl(self.request.query, keep_blank_values=True)
        return urlencode([pair for pair in pairs if pair[0] != PARAMETER])

    def get_client_uri(self, protocol: str, host: str, port: int, proxied_path: str) -> str:
        whole = str(super().get_client_uri(protocol, host, port, proxied_path))
        if self._page is None:
            return whole
        path = whole.partition("://")[2].partition("?")[0]
        return self._page.url(f"/{path.partition('/')[2]}", self._query())

    def proxy_request_headers(self) -> dict[str, str]:
        """Return a few of the browser's headers, and the scheduler's token."""
        if self._page is None:
            headers: dict[str, str] = super().proxy_request_headers()
            return headers
        given = self.request.headers
        return {name: given[name] for name in PASSED if name in given} | {
            "Cookie": self._page.cookie
        }

    def proxy_request_options(self) -> dict[str, Any]:
        options: dict[str, Any] = super().proxy_request_options()
        if self._page is None:
            return options
        limits = {"connect_timeout": CONNECT_S, "request_timeout": PAGE_S}
        return options | limits | {"ssl_options": self._page.tls}


def _without_cookies(response: Any) -> None:
    """Remove cookies from a response, since browsers would send them to all servers of the host."""
    response.headers.pop("Set-Cookie", None)
