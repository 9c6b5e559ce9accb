"""TLS credentials of a cluster: making them, and converting them to and from PEM texts."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from distributed import Security

from scalable.protocol.dask_seams.security import KeptSecurity, seams

#: Time before its making from which a certificate is valid: clocks of other machines may be behind.
BACKDATED = timedelta(hours=1)
VALID = timedelta(days=365)
_NAME = "dask-internal"


def security_of(pem: Mapping[str, str]) -> Security:
    """Return a ``distributed.Security`` that requires encryption, made from PEM texts.

    Parameters
    ----------
    pem
        Keyword argument of ``distributed.Security`` -> PEM text.
    """
    seams.check()
    return KeptSecurity(require_encryption=True, **pem)


def new_security() -> Security:
    """Return new credentials for one cluster, as ``distributed.Security.temporary`` makes them.

    They are valid from an hour ago, so that machines whose clocks are behind accept them.
    """
    authority, certificate, key = new_credentials()
    roles = {f"tls_{role}_cert": certificate for role in ("client", "scheduler", "worker")}
    keys = {name.replace("_cert", "_key"): key for name in roles}
    return security_of({"tls_ca_file": authority, **roles, **keys})


def new_credentials() -> tuple[str, str, str]:
    """Return a new CA certificate, certificate and private key for one cluster, as PEM texts.

    One self-signed certificate is both the authority and the certificate of all roles. Its key is
    of the elliptic curve P-256: each side of each connection signs with it, which takes 0.04 ms,
    and 0.9 ms with RSA of 2,048 bits. Of the CPU time in which a scheduler took 2,000 workers,
    RSA's handshakes were a third.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + VALID)
        .sign(key, hashes.SHA256())
    )
    shown = certificate.public_bytes(serialization.Encoding.PEM).decode()
    private = key.private_bytes(
        encoding=serialization.Encoding.PEM,
        format=serialization.PrivateFormat.PKCS8,
        encryption_algorithm=serialization.NoEncryption(),
    ).decode()
    return shown, shown, private


def certificate_fault(error: BaseException) -> str | None:
    """Return why the certificate of the other side was refused; None for other errors.

    Parameters
    ----------
    error
        Error of a connection; its causes are examined, too.
    """
    cause: BaseException | None = error
    while cause is not None:
        fault = _certificate_words(cause)
        if fault is not None:
            now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            return f"its certificate is refused: {fault} (the clock of this machine: {now})"
        cause = cause.__cause__ or cause.__context__
    return None


def _certificate_words(error: BaseException) -> str | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message or str(error)
    # Dask keeps of some errors only the text.
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" not in text:
        return None
    return text.partition("certificate verify failed:")[2].partition("(_ssl")[0].strip() or text
