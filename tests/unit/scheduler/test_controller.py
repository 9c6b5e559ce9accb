"""What the scheduler's side of the pools says, without workers."""

import logging

from distributed import Scheduler
from distributed.versions import get_versions

from scalable.protocol.operations import WIRE, WIRE_VERSION
from scalable.scheduler.controller import Controller
from scalable.scheduler.managers import Demand


async def test_other_versions_on_a_worker_are_named_once(caplog):
    options = {"protocol": "inproc://", "dashboard_address": ":0"}
    async with Scheduler(**options) as scheduler:
        controller = Controller(scheduler)
        other = get_versions()
        other["packages"]["dask"] = "1999.1.0"
        with caplog.at_level(logging.WARNING, "scalable"):
            controller._versions.compare("a-1", get_versions())
            assert "other versions" not in caplog.text
            controller._versions.compare("a-1", other)
            controller._versions.compare("a-2", other)
        await controller.close()
    assert caplog.text.count("worker a-1 has other versions: dask 1999.1.0 there") == 1
    assert "a-2" not in caplog.text


def attach(controller, manager, priority):
    pools = {"a": {"cpus": 1, "memory": 2**30, "slots": 1}}
    answer = controller.attach(
        manager=manager, nonce=manager, target="t", provider="local", priority=priority, pools=pools
    )
    assert answer["accepted"]


async def test_priorities_decide_among_expected_managers_and_not_who_came_first():
    async with Scheduler(protocol="inproc://", dashboard_address=":0") as scheduler:
        demand = Demand()
        demand.want("a", 2, before=0, reason="test", source="manual")
        controller = Controller(scheduler, demand, expected=2)
        attach(controller, "last", 1)
        assert demand.orders("last") == {}
        attach(controller, "first", 0)
        shares = {name: demand.orders(name)["a"][1] for name in ("first", "last")}
        assert shares == {"first": 2, "last": 0}
        await controller.close()


async def test_a_manager_that_does_not_come_is_not_waited_for_forever(monkeypatch):
    monkeypatch.setattr("scalable.scheduler.cluster_state.GATHER_S", 0.0)
    async with Scheduler(protocol="inproc://", dashboard_address=":0") as scheduler:
        demand = Demand()
        demand.want("a", 2, before=0, reason="test", source="manual")
        controller = Controller(scheduler, demand, expected=2)
        attach(controller, "last", 1)
        assert demand.orders("last")["a"][1] == 2
        await controller.close()


async def test_a_manager_with_other_messages_is_refused_whatever_it_sends():
    async with Scheduler(protocol="inproc://", dashboard_address=":0") as scheduler:
        controller = Controller(scheduler)
        answer = controller.attach(**{WIRE: 99, "manager": "new", "something": "of later"})
        assert not answer["accepted"]
        assert "manager 'new' has version 99 of scalable's messages" in answer["reason"]
        assert list(controller.managers) == []
        answer = controller.attach(**{WIRE: WIRE_VERSION, "manager": "new", "nonce": "n"})
        assert answer["accepted"]
        await controller.close()


async def test_no_manager_attaches_to_a_cluster_that_ends():
    async with Scheduler(protocol="inproc://", dashboard_address=":0") as scheduler:
        controller = Controller(scheduler, close_with=lambda: None)
        attach(controller, "early", 0)
        controller.end("the test is over")
        answer = controller.attach(manager="late", nonce="late", pools={})
        assert not answer["accepted"]
        assert answer["reason"] == "the cluster is stopping: the test is over"
        assert controller.heartbeat("early", "early", {})["end"]
        assert controller.heartbeat("early", "another process", {}) == {}
        await controller.close()
