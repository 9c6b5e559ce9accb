"""Listening addresses: loopback unless a host is written, and nothing that is half understood."""

import pytest

from scalable.protocol.addresses import LOOPBACK, is_loopback, link_host, listen_address


@pytest.mark.parametrize(("written", "host", "port"), [
    ("8799", LOOPBACK, 8799),
    (8799, LOOPBACK, 8799),
    (":8799", LOOPBACK, 8799),
    (":0", LOOPBACK, 0),
    (" 8799 ", LOOPBACK, 8799),
    ("127.0.0.1:8799", LOOPBACK, 8799),
    ("localhost:8799", "localhost", 8799),
    ("0.0.0.0:8799", "0.0.0.0", 8799),
    ("login-1.cluster.example:1", "login-1.cluster.example", 1),
    ("[::1]:8799", "::1", 8799),
    ("[::]:65535", "::", 65535),
    ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
])  # fmt: skip
def test_a_page_listens_on_loopback_unless_a_host_is_written(written, host, port):
    assert listen_address(written) == (host, port)


@pytest.mark.parametrize(
    "written",
    [
        "", ":", "localhost", "0.0.0.0", "::1", "::1:8787", "[::1]", "[::1]8787", "[1.2.3.4]:1",
        ":65536", ":-1", ":8787x", ":\uff18\uff17", "a b:1", "-x:1", "x-:1", "127.1:1", "1.2.3:4:5",
        ":8787,:8788", "http://host:1", "*:1", None, True, 1.5, "host\n:1", "\x1b[31m:1",
    ],
)  # fmt: skip
def test_invalid_addresses_are_refused_with_an_example(written):
    with pytest.raises(ValueError, match=r"write|is not"):
        listen_address(written)


@pytest.mark.parametrize(
    ("host", "shown"), [("0.0.0.0", LOOPBACK), ("::", LOOPBACK), ("::1", "[::1]"), ("node", "node")]
)
def test_a_link_names_a_host_that_a_browser_can_reach(host, shown):
    assert link_host(host) == shown


@pytest.mark.parametrize(("address", "answer"), [
    ("tls://127.0.0.1:8786", True), ("tls://[::1]:8786", True), ("tcp://localhost:1", True),
    ("tls://10.0.0.1:8786", False), ("tls://login1:8786", False),
])  # fmt: skip
def test_addresses_that_lead_to_their_own_machine(address, answer):
    assert is_loopback(address) is answer
