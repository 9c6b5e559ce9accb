"""Network interfaces and ports."""

import socket

import pytest

from scalable.errors import ProviderError
from scalable.providers.slurm import api
from scalable.providers.slurm.api import PORTS_TRIED, address_of, free_port


def test_the_loopback_interface_has_an_address():
    assert address_of("lo") == "127.0.0.1"


@pytest.mark.parametrize("name", ["ib9", "", "LO"])
def test_a_missing_interface_names_those_that_exist(name):
    with pytest.raises(ProviderError) as caught:
        address_of(name)
    assert f"no network interface {name!r}" in caught.value.message
    assert "lo (127.0.0.1)" in str(caught.value.hint)
    assert not caught.value.transient


@pytest.fixture
def taken():
    """A port that somebody listens on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_taken_port_is_passed_over(taken):
    port = free_port("127.0.0.1", taken)
    assert taken < port < taken + PORTS_TRIED
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


def test_a_free_port_is_the_one_that_was_asked_for(taken):
    free = free_port("127.0.0.1", taken + 1)
    assert free_port("127.0.0.1", free) == free


def test_without_a_free_port_the_error_names_the_option(taken, monkeypatch):
    monkeypatch.setattr(api, "PORTS_TRIED", 1)
    with pytest.raises(ProviderError, match=rf"no port of {taken} to {taken} is free") as caught:
        free_port("127.0.0.1", taken)
    assert "scheduler_port" in str(caught.value.hint)


def test_an_address_of_another_machine_has_no_free_port(monkeypatch):
    monkeypatch.setattr(api, "PORTS_TRIED", 3)
    with pytest.raises(ProviderError, match="is free on 192.0.2.1"):
        free_port("192.0.2.1", 8786)


def test_ports_end_where_ports_end():
    """The last ones are tried, and none beyond."""
    with socket.socket() as holder:
        try:
            holder.bind(("127.0.0.1", 65535))
        except OSError:
            pass  # somebody else's: it is taken all the same
        else:
            holder.listen()
        with pytest.raises(ProviderError, match="no port of 65535"):
            free_port("127.0.0.1", 65535)
