"""Both ends of a connection in one process, which shares memory with itself."""

import asyncio
import contextlib
from types import SimpleNamespace

from distributed.comm.core import connect, listen

from scalable.dask_compat.comm import share_memory


@contextlib.asynccontextmanager
async def pair(*, deserialize=True, **options):
    """Yield two connections: what one of them writes, the other reads."""
    share_memory()
    here, accepted = SimpleNamespace(), []

    async def accept(comm):
        accepted.append(comm)

    async with listen("tcp://127.0.0.1:0", accept, deserialize=deserialize, **options) as listener:
        here.one = await connect(listener.contact_address)
        await here.one.write("hello")
        while not accepted:
            await asyncio.sleep(0.001)
        here.other = accepted[0]
        assert await here.other.read() == "hello"
        try:
            yield here
        finally:
            here.one.abort()
            here.other.abort()


async def sent(pair, value):
    """Return what the other end reads when this one writes a value, and answers."""
    await pair.one.write(value)
    read = await pair.other.read()
    await pair.other.write("OK")
    assert await pair.one.read() == "OK"
    return read
