"""Every RPC handler is offered by the scheduler's side, and is called with what it takes."""

import ast
import asyncio
import inspect
from pathlib import Path

import pytest

import scalable
from scalable.protocol.handlers import Handler
from scalable.protocol.pools import Attachment
from scalable.scheduler.controller import Controller
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.scheduler.recorder import RunFiles

#: Functions that call a handler which is one of their arguments.
CALLERS = {"request", "ask", "_ask", "_request", "sync", "partial"}


@pytest.fixture(scope="module")
def offered():
    async def handlers():
        scheduler = PoolScheduler(dashboard=False, dashboard_address=None)
        controller = Controller(scheduler)
        RunFiles(scheduler, Path(), lambda: None)
        await controller.close()
        return dict(scheduler.handlers)

    return asyncio.run(handlers())


def requests():
    """Yield (handler, names of its arguments, whether others are added) of the calls in src."""
    for path in Path(scalable.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2]
            for given in node.args if name in CALLERS else ():
                if ast.unparse(given).startswith("Handler."):
                    names = {keyword.arg for keyword in node.keywords}
                    yield (
                        Handler[given.attr],
                        names - {None, "timeout_s"},
                        None in names or name == "partial",
                    )


def test_the_table_is_what_a_scheduler_offers(offered):
    ours = {name for name in offered if name.startswith("scalable")}
    assert ours == {handler.value for handler in Handler}


def test_handlers_take_what_requests_send(offered):
    found = list(requests())
    assert len({handler for handler, *_ in found}) > len(Handler) / 2
    for handler, names, has_more in found:
        signature = inspect.signature(offered[handler.value])
        bind = signature.bind_partial if has_more else signature.bind
        bind(**dict.fromkeys(names))


def test_a_manager_attaches_with_what_the_handler_takes(offered):
    sent = Attachment("m", "x").to_message()
    inspect.signature(offered[Handler.ATTACH.value]).bind(**sent, instead_of="y")
