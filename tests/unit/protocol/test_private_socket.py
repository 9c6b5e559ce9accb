"""Requests to a scheduler in another process, through a socket of the machine."""

import asyncio
from contextlib import suppress

import pytest

from scalable.errors import ClusterError
from scalable.protocol import private_socket
from scalable.protocol.handlers import Handler
from scalable.protocol.private_socket import PrivateSocket, SocketComm


async def test_a_handler_that_fails_in_an_unforeseen_way_is_an_error_of_the_asker(caplog):
    def broken():
        raise ZeroDivisionError("of ours")

    served = PrivateSocket({Handler.STATUS.value: broken})
    comm = SocketComm(await served.start())
    try:
        with pytest.raises(ClusterError, match="has failed: ZeroDivisionError"):
            await getattr(comm, Handler.STATUS.value)()
    finally:
        served.close()
    assert "requested by another process" in caplog.text


def test_an_answer_that_nobody_reads_is_dropped(monkeypatch):
    size = 20_000_000
    answered = []

    def large():
        answered.append(True)
        return "x" * size

    async def received():
        monkeypatch.setattr(private_socket, "TAKEN_S", 0.1)
        served = PrivateSocket({Handler.STATUS.value: large})
        serve, served_one = served._serve, asyncio.Event()

        async def serve_one(*streams):
            await serve(*streams)
            served_one.set()

        served._serve = serve_one
        reader, writer = await asyncio.open_unix_connection(await served.start(), limit=100)
        writer.write(b'{"handler": "%s", "arguments": {}}\n' % Handler.STATUS.value.encode())
        try:
            async with asyncio.timeout(60):
                await served_one.wait()  # after TAKEN_S; what was not read is not there any more
                assert answered
                with suppress(ConnectionError):
                    return len(await reader.read())
                return 0
        finally:
            writer.close()
            served.close()

    assert asyncio.run(received()) < size
