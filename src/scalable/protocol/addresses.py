"""Addresses on which the processes of a cluster listen. This module does no I/O."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, NamedTuple

#: Set if a backend can pass the listening address only through the environment.
HOST_VARIABLE = "SCALABLE_HOST"
#: Host on which servers listen unless another host is given.
LOOPBACK = "127.0.0.1"

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOSTNAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_HIGHEST_PORT = 65535


class ListenAddress(NamedTuple):
    """Host and port on which a server listens. Port 0 means any free port."""

    host: str
    port: int


def listen_address(written: Any) -> ListenAddress:
    """Parse a port (on loopback) or HOST:PORT to listen on. Raises ValueError."""
    text = "" if isinstance(written, bool) else str(written).strip()
    host, colon, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) > _HIGHEST_PORT:
        raise ValueError(
            f"{written!r} has no port between 0 and {_HIGHEST_PORT}: "
            "write :8787, or HOST:8787 to listen on another interface than loopback"
        )
    if colon and host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not _is_ip(host, 6):
            raise ValueError(f"{written!r}: {host!r} is not an IPv6 address")
    elif ":" in host:
        raise ValueError(f"{written!r}: write an IPv6 address in brackets, as in [::1]:8787")
    elif host and not _is_ip(host, 4) and not _names_host(host):
        raise ValueError(f"{written!r}: {host!r} is not the name or the address of a host")
    return ListenAddress(host or LOOPBACK, int(port))


def scheduler_url(written: str) -> str:
    """Return the ``tls://`` URL of a scheduler's address. Raises ValueError for another form."""
    scheme, separator, rest = written.strip().rpartition("://")
    if separator and scheme != "tls":
        raise ValueError(f"{written!r} starts with {scheme}://, but schedulers use tls://")
    host, port = listen_address(rest)
    if port == 0 or rest.startswith(":") or ":" not in rest:
        raise ValueError(f"{written!r} is not HOST:PORT, as in 203.0.113.7:8786")
    return f"tls://{link_host(host)}:{port}"


def link_host(host: str) -> str:
    """Return a host for URLs: loopback instead of all interfaces, and IPv6 in brackets."""
    if host in ("", "0.0.0.0", "::"):  # noqa: S104 - compared, not listened on
        return LOOPBACK
    return f"[{host}]" if ":" in host else host


def is_loopback(address: str) -> bool:
    """Return whether an address such as ``tls://127.0.0.1:8786`` is a loopback address."""
    host = address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_ip(host: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(host).version == version
    except ValueError:
        return False


def _names_host(host: str) -> bool:
    # Digits and dots are a mistyped IP address. Resolvers would accept one like "127.1".
    return bool(_HOSTNAME.fullmatch(host)) and not re.fullmatch(r"[0-9.]*", host)
