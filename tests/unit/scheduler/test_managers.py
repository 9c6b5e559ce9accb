"""Which managers a cluster lets in, and which workers it takes for theirs."""

import pytest

from scalable.errors import ClusterError
from scalable.model import PoolStatus
from scalable.protocol.pools import Attachment, difference, fits, slots_of
from scalable.scheduler.managers import LEASE_S, UNKNOWN_GRACE_S, AttachedManagers, Demand

POOL = {"cpus": 2, "memory": "4G", "gpus": 0}


def attachment(manager="m", nonce="one", **more):
    return Attachment(manager, nonce, {"pid": 1}, pools={"a": POOL}, **more)


def report(**counts):
    return {"a": PoolStatus(**counts)}


def test_a_duplicate_id_is_refused_until_its_lease_is_over():
    managers = AttachedManagers()
    assert managers.attach(attachment(), 0)["accepted"]
    refused = managers.attach(attachment(nonce="two"), 10)
    assert not refused["accepted"]
    assert refused["holder"] == {"nonce": "one", "identity": {"pid": 1}, "silent_s": 10}
    assert managers.beat("m", "one", report(), [], 20)
    assert not managers.attach(attachment(nonce="two"), 20 + LEASE_S)["accepted"]
    assert managers.attach(attachment(nonce="two"), 20 + LEASE_S + 1)["accepted"]
    assert not managers.beat("m", "one", report(), [], 60)


def test_a_manager_is_lost_after_its_lease():
    managers = AttachedManagers()
    managers.attach(attachment(), 0)
    assert managers.silent(LEASE_S, LEASE_S) == set()
    assert managers.silent(LEASE_S, LEASE_S + 1) == {"m"}
    managers.beat("m", "one", report(), [], LEASE_S + 2)
    assert managers.silent(LEASE_S, LEASE_S + 3) == set()


def test_of_two_that_replace_a_dead_process_one_wins():
    managers = AttachedManagers()
    managers.attach(attachment(), 0)
    assert managers.attach(attachment(nonce="two"), 1, instead_of="one")["accepted"]
    assert not managers.attach(attachment(nonce="three"), 1, instead_of="one")["accepted"]


def test_managers_agree_on_what_a_tag_means():
    managers = AttachedManagers()
    managers.attach(attachment(), 0)
    other = Attachment("n", "x", pools={"a": {**POOL, "memory": "4000M"}})
    assert managers.attach(other, 0)["accepted"]
    smaller = Attachment("o", "x", pools={"a": {**POOL, "memory": "2G"}})
    answer = managers.attach(smaller, 0)
    assert not answer["accepted"]
    assert "memory 4G there, 2G here" in answer["reason"]


def test_a_worker_that_its_manager_does_not_know_is_a_stranger_after_a_while():
    managers = AttachedManagers()
    managers.attach(attachment(), 0)
    managers.beat("m", "one", report(), ["a-1"], 0)
    claims = {"a-1": "m", "a-2": "m", "a-3": "gone"}
    assert managers.strangers(claims, 1) == []
    managers.beat("m", "one", report(), ["a-1"], UNKNOWN_GRACE_S)
    assert set(managers.strangers(claims, UNKNOWN_GRACE_S + 2)) == {"a-2", "a-3"}
    # A lost manager cannot know anything: its workers go on.
    later = UNKNOWN_GRACE_S + LEASE_S + 10
    assert managers.strangers({"a-2": "m"}, later) == []
    assert managers.silent(5, later) == {"m"}


def test_an_order_is_renewed_when_the_same_count_is_asked_for_again():
    demand, managers = Demand(), AttachedManagers()
    told = []
    demand.listeners.append(lambda *change: told.append(change))
    managers.attach(attachment(), 0)
    demand.want("a", 2, before=0, reason="scale", source="manual")
    demand.share(managers.tiers({}, 0))
    (first, count) = demand.orders("m")["a"]
    assert count == 2
    demand.share(managers.tiers({}, 0))
    assert demand.orders("m")["a"] == (first, 2)
    demand.want("a", 2, before=2, reason="scale", source="manual")
    demand.share(managers.tiers({}, 0))
    assert demand.orders("m")["a"][0] > first
    assert told == [("a", 0, 2, "scale", "manual")]
    demand.settle("m", "a", 1)
    assert demand.totals == {"a": 1}
    with pytest.raises(ClusterError, match="cannot have -1 workers"):
        demand.want("a", -1, before=1, reason="", source="")


def test_the_rule_by_which_calls_and_workers_belong_together():
    assert (slots_of({"a": 2}, "a"), slots_of({"a": 2}, "b")) == (2, 0)
    assert (slots_of(None, ""), slots_of({"a": 1}, "")) == (1, 0)
    assert fits({"a": 2}, "a", 2)
    assert not fits({"a": 3}, "a", 2)
    assert not fits({"b": 1}, "a", 2)
    assert difference({}, {"cpus": 3}) is None
    assert difference({"cpus": 2}, {"cpus": 3}) == "cpus 2 there, 3 here"
