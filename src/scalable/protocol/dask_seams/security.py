"""Seams (dependences on Dask internals) of TLS credentials."""

from __future__ import annotations

import os
import ssl
from typing import Any

from distributed import Security

from scalable.protocol.dask_seams.facts import Seams, declares, mentions

seams = Seams("security")


@seams.relies_on(
    declares("distributed.security:Security._get_tls_context", "self", "tls", "purpose"),
    mentions("distributed.security:Security._get_tls_context", "cert", "key", "load_cert_chain"),
)
class KeptSecurity(Security):
    """A ``distributed.Security`` whose key never lies on a disk, though OpenSSL reads files only.

    Dask writes a key that is given as text into a temporary directory for a moment. A process that
    is killed in this moment leaves the key there. This class writes certificate and key into an
    anonymous file in memory (``memfd_create(2)``), which ends with the process. Systems other than
    Linux have none, and Dask's way is taken there.

    Servers issue no session tickets: Dask's connections never resume a session, and two tickets
    are 0.4 of the 1.5 ms of CPU time that a handshake takes.

    Relies on the method that makes contexts, and on the dictionary that it is given.
    """

    __slots__ = Security.__slots__  # Dask takes them for the names of its parameters

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
