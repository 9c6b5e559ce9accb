"""What the scheduler's side of the pools says, without workers."""

import asyncio
import logging

from distributed import Scheduler
from distributed.versions import get_versions

from scalable.cluster.controller import Controller


def test_other_versions_on_a_worker_are_named_once(caplog):
    async def scenario():
        options = {"protocol": "inproc://", "dashboard_address": ":0"}
        async with Scheduler(**options) as scheduler:
            controller = Controller(scheduler)
            other = get_versions()
            other["packages"]["dask"] = "1999.1.0"
            with caplog.at_level(logging.WARNING, "scalable"):
                controller._compare_versions("a-1", get_versions())
                assert "other versions" not in caplog.text
                controller._compare_versions("a-1", other)
                controller._compare_versions("a-2", other)
            await controller.close()

    asyncio.run(scenario())
    assert caplog.text.count("worker a-1 has other versions: dask 1999.1.0 there") == 1
    assert "a-2" not in caplog.text
