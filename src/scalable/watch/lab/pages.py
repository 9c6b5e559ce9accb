"""Connection from Jupyter's server to the pages of a cluster's scheduler."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from scalable.errors import ClusterError
from scalable.liveness import is_alive, place_of
from scalable.protocol.addresses import is_loopback, link_host
from scalable.protocol.servers import PARAMETER, cookie_name
from scalable.watch.lab.watching import Seen


@dataclass(frozen=True)
class Page:
    """The HTTP server of one scheduler."""

    host: str
    port: int
    #: Token that the server requires in a cookie.
    token: str = field(repr=False)
    #: Context that verifies the server. None for a server without TLS.
    tls: ssl.SSLContext | None = None

    def url(self, path: str, query: str, *, socket: bool = False) -> str:
        """Return the URL of a page (``path`` starts with a slash), without the token."""
        scheme = ("ws" if socket else "http") + ("" if self.tls is None else "s")
        address = f"{scheme}://{link_host(self.host)}:{self.port}{path}"
        return f"{address}?{query}" if query else address

    @property
    def cookie(self) -> str:
        """Value of the header ``Cookie`` that opens the pages."""
        return f"{cookie_name(self.token)}={self.token}"


def page_of(seen: Seen) -> Page:
    """Return the HTTP server of a cluster's scheduler.

    The token is sent to no other process: not to a port of this machine that another user may have
    taken since the scheduler exited. Raises ClusterError if the cluster has no dashboard, its
    scheduler has exited, or it listens on the loopback of another machine.
    """
    name, link = seen.status.name, seen.status.dashboard
    if not link:
        raise ClusterError(
            f"cluster {name!r} has no live page",
            hint="start it with `scalable up --dashboard :0`",
        )
    parts = urlsplit(link)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    known = seen.directory.scheduler() or {}
    alive = is_alive(known)
    if alive is False:
        raise ClusterError(f"the scheduler of cluster {name!r} has ended")
    if alive is None and is_loopback(f"tcp://{parts.netloc}"):
        raise ClusterError(
            f"the live page of cluster {name!r} is shown only on the machine of {place_of(known)}",
            hint="`--dashboard HOST:0` of `scalable up` lets it listen elsewhere",
        )
    token = parse_qs(parts.query).get(PARAMETER, [""])[0]
    tls = _trusting(seen) if parts.scheme == "https" else None
    return Page(parts.hostname or "", port, token, tls)


def _trusting(seen: Seen) -> ssl.SSLContext:
    """Return a context for the cluster's own authority, whose certificates contain no host."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=seen.directory.pem()["tls_ca_file"])
    return context
