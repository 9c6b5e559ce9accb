"""Every RPC handler is offered by the scheduler's side, and is called with what it takes."""

import asyncio
import inspect
from pathlib import Path

import pytest

from scalable.protocol.handlers import Handler, SchedulerCalls
from scalable.protocol.pools import Attachment
from scalable.scheduler.controller import Controller
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.scheduler.recorder import RunFiles

ARGUMENTS = {
    Handler.ATTACH: ((Attachment("m", "x"),), {"instead_of": "y"}),
    Handler.HEARTBEAT: (("m", "x", {"a": {"running": 1}}, ["a-1"], [], {"a-1": ["a", 1.0, ["a-1"]]}), {}),
    Handler.LEAVE: (("m", "x"), {"gone": True}),
    Handler.DRAIN: (({"a-1": "its walltime ends"},), {}),
    Handler.RESUME: ((["a-1"],), {}),
    Handler.WITHHOLD_WORK: (([["a-1"]],), {}),
    Handler.ALLOW_WORK: ((["a-1"],), {}),
    Handler.EXCUSE_LOSSES: ((["a-1"],), {}),
    Handler.ENDED_FOR_MEMORY: ((["a-1"],), {}),
    Handler.POOLS: ((), {}),
    Handler.STATUS: ((), {}),
    Handler.OVERVIEW: ((0,), {"kinds": ["failures"]}),
    Handler.WORKERS: (("a", 5), {}),
    Handler.SCALE: (({"a": 1},), {"source": "plan", "reason": "scale"}),
    Handler.APPLY: (({"a": 1}, {"b": 1}, {}, "because"), {}),
    Handler.ADAPT: (("a", 0, 3), {"enabled": True}),
    Handler.SET_BUDGET: ((25.0,), {}),
    Handler.END: (("it was stopped on request",), {}),
    Handler.CREATOR_LIVES: ((), {}),
    Handler.PROFILE: (("key",), {}),
    Handler.EXPLAIN: ((), {"tag": "a"}),
    Handler.CALL: (("key",), {"position": 3}),
    Handler.LIVE_PAGE: ((), {}),
    Handler.FOLLOW_SLOTS: (("client",), {}),
    Handler.UPLOAD_PLACES: (("a", 2_000_000), {}),
    Handler.RUN_FILES: (({"tasks.jsonl": 0},), {}),
    Handler.TAKE_FILES: (("digest", 0, 1, b""), {}),
    Handler.FILES: (("digest", 0), {}),
    Handler.BUNDLE_BEGUN: (("key", "client"), {}),
    Handler.CODE_TABLE: (("id",), {}),
    Handler.CHECKPOINTS: ((), {}),
    Handler.SOURCES: ((["digest"],), {}),
    Handler.BEGIN: (("a-1",), {}),
    Handler.NOTICE: (("address", 120.0, "its machine is taken back"), {}),
    Handler.OUT_OF_MEMORY: (("address", ["key"], 2, 1), {}),
    Handler.GIVE_UP: (("address", "key"), {}),
    Handler.FAILURES: ((["key"],), {}),
    Handler.REASONS_OF_LOSS: (("key", ["a-1"]), {}),
}  # fmt: skip


class Recording:
    """Stands for a comm: keeps what is called, and answers with an empty list."""

    def __init__(self):
        self.called = []

    def __getattr__(self, name):
        async def call(**arguments):
            self.called.append((name, arguments))
            return []

        return call


@pytest.fixture(scope="module")
def offered():
    async def handlers():
        scheduler = PoolScheduler(dashboard=False, dashboard_address=None)
        controller = Controller(scheduler)
        RunFiles(scheduler, Path(), lambda: None)
        await controller.close()
        return dict(scheduler.handlers)

    return asyncio.run(handlers())


def method_of(handler):
    return handler.value.removeprefix("scalable_")


def test_the_table_is_what_a_scheduler_offers(offered):
    ours = {name for name in offered if name.startswith("scalable")}
    assert ours == {handler.value for handler in Handler}


def test_every_handler_has_a_typed_caller():
    methods = {name for name in vars(SchedulerCalls) if not name.startswith("_")}
    assert methods == {method_of(handler) for handler in Handler}


@pytest.mark.parametrize("handler", Handler)
def test_a_handler_takes_what_its_caller_sends(handler, offered):
    comm = Recording()
    positional, named = ARGUMENTS[handler]
    asyncio.run(getattr(SchedulerCalls(comm), method_of(handler))(*positional, **named))
    ((name, sent),) = comm.called
    assert name == handler.value
    inspect.signature(offered[name]).bind(**sent)
