"""Requests of clients to end calls, which the scheduler passes on."""

from types import SimpleNamespace

import pytest

from scalable.protocol.bundles import EVERY
from scalable.protocol.operations import INTERRUPT, RETURNED
from scalable.scheduler import bundle_relay
from scalable.scheduler.bundle_relay import BundleRelay


@pytest.fixture
def told(monkeypatch):
    """Messages to clients and workers, with their receivers."""
    messages = []

    def note(scheduler, receiver, message):
        messages.append((receiver, message["op"], message["key"], message.get("numbers")))

    monkeypatch.setattr(bundle_relay, "send_to_client", note)
    monkeypatch.setattr(bundle_relay, "send_to_worker", note)
    return messages


def relay_with(state, address=None, clients=("ann",)):
    worker = None if address is None else SimpleNamespace(address=address)
    wanting = [SimpleNamespace(client_key=client) for client in clients]
    task = SimpleNamespace(key="bundle", processing_on=worker, state=state, who_wants=wanting)
    relay = BundleRelay()
    relay._scheduler = SimpleNamespace(tasks={"bundle": task}, released=[])

    def release(keys, client):
        relay._scheduler.released += [(key, client) for key in keys]

    relay._scheduler.client_releases_keys = release
    return relay


@pytest.mark.parametrize("number", [2, EVERY])
@pytest.mark.parametrize("state", ["no-worker", "queued", "waiting"])
def test_a_bundle_that_no_worker_has_goes_back_to_its_client(told, state, number):
    relay = relay_with(state)
    relay.interrupt("bundle", number, "ann")
    assert told == [("ann", RETURNED, "bundle", EVERY)]
    assert relay._scheduler.released == [("bundle", "ann")]  # no worker may begin it any more


def test_a_call_on_a_worker_is_ended_there(told):
    relay_with("processing", "tcp://a").interrupt("bundle", 2, "ann")
    assert told == [("tcp://a", INTERRUPT, "bundle", None)]


def test_a_call_for_which_another_client_waits_too_goes_on(told):
    relay_with("no-worker", clients=("ann", "bob")).interrupt("bundle", 2, "ann")
    assert told == []


@pytest.mark.parametrize("state", ["memory", "erred", "released"])
def test_a_bundle_that_has_ended_stays_as_it_is(told, state):
    relay_with(state).interrupt("bundle", 2, "ann")
    assert told == []


def test_a_plain_call_is_left_to_its_client(told):
    relay_with("no-worker").interrupt("bundle", None, "ann")
    assert told == []
