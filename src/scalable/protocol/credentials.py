"""TLS credentials of a cluster, between Dask's ``Security`` and the texts that are stored."""

from __future__ import annotations

from collections.abc import Mapping

from distributed import Security


def security_of(pem: Mapping[str, str]) -> Security:
    """Return Dask's credentials from PEM texts.

    Parameters
    ----------
    pem
        Keyword of ``distributed.Security`` -> text.
    """
    return Security(require_encryption=True, **pem)


def new_credentials() -> tuple[str, str, str]:
    """Return a new authority, certificate and key for one cluster, as PEM texts."""
    made = Security.temporary()
    return made.tls_ca_file, made.tls_scheduler_cert, made.tls_scheduler_key
