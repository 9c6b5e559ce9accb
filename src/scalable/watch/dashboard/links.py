"""Links to the dashboard. No I/O."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def page_link(link: str) -> str:
    """Return the link to a cluster's dashboard from the link to Dask's pages, with the token."""
    parts = urlsplit(link)
    prefix = parts.path.rpartition("/")[0]
    return urlunsplit(parts._replace(path=f"{prefix}/scalable/"))


def ssh_command(link: str, host: str, user: str) -> str:
    """Return the command that forwards a page on ``host`` to the user's own machine."""
    parts = urlsplit(link)
    return f"ssh -N -L {parts.port}:{parts.hostname}:{parts.port} {user}@{host}"
