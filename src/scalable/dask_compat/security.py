"""Seams of TLS credentials."""

from __future__ import annotations

import os
import ssl
from typing import Any

from distributed import Security

from scalable.dask_compat.facts import Seams, declares, mentions

seams = Seams("security")


@seams.relies_on(
    declares("distributed.security:Security._get_tls_context", "self", "tls", "purpose"),
    mentions("distributed.security:Security._get_tls_context", "cert", "key", "load_cert_chain"),
)
class KeptSecurity(Security):
    """A ``distributed.Security`` whose key is never on a disk, though OpenSSL reads only files.

    Dask writes a key into a temporary directory for a moment, where a killed process leaves it.
    This class uses an anonymous file in memory (``memfd_create(2)``) on Linux, and Dask's method
    elsewhere. Servers issue no session tickets: Dask's connections never resume a session, and two
    tickets are 0.4 of the 1.5 ms of CPU time of a handshake.
    """

    __slots__ = Security.__slots__  # Dask uses them as the names of its parameters

    def _get_tls_context(self, tls: dict[str, Any], purpose: Any) -> ssl.SSLContext:
        certificate, key = tls.get("cert"), tls.get("key")
        is_text = certificate and key and "\n" in certificate and "\n" in key
        if is_text and hasattr(os, "memfd_create"):
            with os.fdopen(os.memfd_create("scalable-credentials"), "wb") as file:
                file.write(f"{certificate}\n{key}\n".encode())
                file.flush()
                path = f"/proc/self/fd/{file.fileno()}"
                context = super()._get_tls_context(tls | {"cert": path, "key": path}, purpose)
        else:
            context = super()._get_tls_context(tls, purpose)
        if context is not None and purpose is ssl.Purpose.CLIENT_AUTH:
            context.num_tickets = 0
        return context  # type: ignore[no-any-return]
