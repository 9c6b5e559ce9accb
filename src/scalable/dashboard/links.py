"""Links to the live page. No I/O."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def page_link(link: str) -> str:
    """Return the link to the live page of a cluster, with its token.

    Parameters
    ----------
    link
        Link to Dask's pages of the same scheduler, with the token, as in a cluster's status.
    """
    parts = urlsplit(link)
    prefix = parts.path.rpartition("/")[0]
    return urlunsplit(parts._replace(path=f"{prefix}/scalable/"))


def ssh_command(link: str, host: str, user: str) -> str:
    """Return the command that makes a page reachable from the machine in front of a user.

    Parameters
    ----------
    link
        Link to the page on the machine of the scheduler.
    host, user
        Name of that machine, and name of the user there.
    """
    parts = urlsplit(link)
    return f"ssh -N -L {parts.port}:{parts.hostname}:{parts.port} {user}@{host}"
