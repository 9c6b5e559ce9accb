"""A worker that ends while it connects is no warning for the user."""

import logging

import pytest

import scalable.scheduler.pool_scheduler  # noqa: F401 - its filter


@pytest.mark.parametrize(
    ("reason", "told"),
    [("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred", 0), ("CERTIFICATE_VERIFY_FAILED", 1)],
)
def test_only_other_faults_of_handshakes_are_told(caplog, reason, told):
    with caplog.at_level(logging.WARNING):
        logging.getLogger("distributed.comm.tcp").warning(
            "Listener on %r: TLS handshake failed with remote %r: %s", "tls://h:1", "h:2", reason
        )
    assert len(caplog.records) == told
