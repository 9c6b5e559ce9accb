"""TLS credentials of clusters."""

import pickle
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from scalable.protocol.credentials import new_credentials, new_security, no_answer


def test_a_certificate_is_valid_for_machines_whose_clock_is_behind():
    authority, certificate, _ = new_credentials()
    assert authority == certificate
    read = x509.load_pem_x509_certificate(certificate.encode())
    behind, now = read.not_valid_before_utc, datetime.now(UTC)
    assert timedelta(minutes=59) < now - behind < timedelta(minutes=70)
    assert timedelta(days=364) < read.not_valid_after_utc - now < timedelta(days=366)


def test_all_roles_have_the_new_certificate():
    security = new_security()
    assert security.require_encryption
    for role in ("client", "scheduler", "worker"):
        arguments = security.get_connection_args(role)
        assert isinstance(arguments["ssl_context"], ssl.SSLContext)


@pytest.mark.own_process
def test_a_key_never_lies_on_a_disk(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a temporary directory")

    security = pickle.loads(pickle.dumps(new_security()))  # as another process gets it
    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    before = set(Path("/proc/self/fd").iterdir())
    contexts = [security.get_connection_args("client")["ssl_context"]]
    contexts.append(security.get_listen_args("worker")["ssl_context"])
    assert all(context.cert_store_stats()["x509"] == 1 for context in contexts)
    assert set(Path("/proc/self/fd").iterdir()) <= before
    assert contexts[1].num_tickets == 0  # nobody resumes a session


@pytest.mark.parametrize("known", ["the error", "its text"])
def test_a_refused_certificate_is_found_among_the_causes_of_an_error(known):
    text = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: not yet valid (_ssl.c:1)"
    cause = OSError(text)
    if known == "the error":
        cause = ssl.SSLCertVerificationError(1, text)
        cause.verify_message = "not yet valid"
    error = OSError("timed out")
    error.__cause__ = cause
    assert "certificate is refused: not yet valid (the clock of" in no_answer(error)
    assert no_answer(OSError("timed out")) == "timed out"
    assert no_answer(TimeoutError()) == "no answer in time"
