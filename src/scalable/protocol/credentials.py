"""Conversion of a cluster's TLS credentials between Dask's ``Security`` and PEM texts."""

from __future__ import annotations

from collections.abc import Mapping

from distributed import Security


def security_of(pem: Mapping[str, str]) -> Security:
    """Return a ``distributed.Security`` that requires encryption, made from PEM texts.

    Parameters
    ----------
    pem
        Keyword argument of ``distributed.Security`` -> PEM text.
    """
    return Security(require_encryption=True, **pem)


def new_credentials() -> tuple[str, str, str]:
    """Return a new CA certificate, certificate and private key for one cluster, as PEM texts."""
    made = Security.temporary()
    return made.tls_ca_file, made.tls_scheduler_cert, made.tls_scheduler_key
