"""A client that reconnects before the loss of its connection is noticed."""

import asyncio

from distributed.comm import connect

from scalable.dask_compat.scheduler import GreetingScheduler

LIMIT_S = 30.0
OPTIONS = {"host": "127.0.0.1", "port": 0, "protocol": "tcp", "dashboard_address": ":0"}


async def registered(scheduler):
    comm = await connect(scheduler.address)
    message = {"op": "register-client", "client": "c", "reply": False, "versions": {}}
    await comm.write(message)
    assert (await comm.read())[0]["op"] == "stream-start"
    return comm


async def test_a_new_connection_outlives_the_earlier_ones():
    async with asyncio.timeout(LIMIT_S), GreetingScheduler(**OPTIONS) as scheduler:
        comms = [await registered(scheduler) for _ in range(3)]
        for earlier in comms[:-1]:
            await earlier.close()
        await asyncio.sleep(0.2)  # the scheduler reads the ends of the earlier ones
        await comms[-1].write([{"op": "client-desires-keys", "keys": [], "client": "c"}])
        scheduler.report({"op": "told"}, client="c")
        assert (await comms[-1].read())[0]["op"] == "told"
        assert {"c"} <= scheduler.clients.keys() & scheduler.client_comms.keys()
        await comms[-1].close()
        while "c" in scheduler.clients:
            await asyncio.sleep(0.01)
