"""A tunnel and its relay over plain TCP, whose connections are cut, delayed and lost."""

import asyncio
import contextlib
import gc
import hashlib
import logging
import random
import socket
import subprocess
import sys
import threading

import psutil
import pytest

from scalable.client import tunnel as tunnels
from scalable.client.tunnel import BackgroundTunnel, Tunnel, TunnelClosedError, in_background
from scalable.protocol import streams
from scalable.protocol.streams import (
    ANSWER_LENGTH,
    Answer,
    Hello,
    SocketCarrier,
    StreamRefusal,
    new_stream_id,
)
from scalable.scheduler import stream_relay
from scalable.scheduler.stream_relay import StreamRelay

BLOCK = random.Random(1).randbytes(2**20)
TCP_USER_TIMEOUT = 18


class Target:
    """The server at the far end of the tunnel: each connection is served by a function."""

    def __init__(self, serve):
        self.serve = serve
        self.ended = threading.Semaphore(0)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = self.socket.getsockname()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                threading.Thread(target=self.one, args=(connection,), daemon=True).start()

    def one(self, connection):
        with contextlib.suppress(OSError), connection:
            self.serve(connection)
        self.ended.release()


def received(connection, count=None):
    """Yield what comes, up to a number of bytes or the end."""
    while count is None or count > 0:
        data = connection.recv(2**18 if count is None else min(count, 2**18))
        if not data:
            return
        if count is not None:
            count -= len(data)
        yield data


def echo(connection):
    for data in received(connection):
        connection.sendall(data)


def digest(connection):
    """Read until the end, then send the digest of all."""
    found = hashlib.sha256()
    for data in received(connection):
        found.update(data)
    connection.sendall(found.digest())


class Network:
    """The way from the tunnel to the relay."""

    def __init__(self, relay):
        self.relay = relay
        self.fault = None
        self.dials = 0
        self.carriers = []

    def lose(self):
        """Let all carriers of now go silent."""
        for carrier in self.carriers:
            carrier.silent = True

    async def dial(self):
        self.dials += 1
        if self.fault is not None:
            raise self.fault
        loop = asyncio.get_running_loop()
        connection = socket.socket()
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", self.relay.port))
        self.carriers.append(Swallowing(connection))
        return self.carriers[-1]


class Swallowing(SocketCarrier):
    """A carrier whose bytes vanish once it is silent."""

    silent = False

    async def receive(self):
        while True:
            data = await super().receive()
            if not (data and self.silent):
                return data


@pytest.fixture
def way():
    """Make a relay to a target, a network and a tunnel; they end with the test."""
    with contextlib.ExitStack() as ending:

        def make(serve, **options):
            target = Target(serve)
            ending.callback(target.socket.close)
            relay = StreamRelay(target.address, **options)
            relay.start()
            ending.callback(relay.close)
            network = Network(relay)
            window = {"window": options["window"]} if "window" in options else {}
            tunnel = BackgroundTunnel(lambda: Tunnel(network.dial, **window))
            ending.callback(tunnel.close)
            return target, relay, network, tunnel

        yield make


def connect(tunnel):
    return socket.create_connection(("127.0.0.1", tunnel.open()), timeout=60)


def cut(tunnel):
    """Close all carriers, as a network failure would, and return their number."""

    async def close():
        carriers = [line.carrier for line in tunnel.tunnel._lines if line.carrier is not None]
        await asyncio.gather(*(carrier.close() for carrier in carriers))
        return len(carriers)

    return in_background(close(), 10)


@contextlib.contextmanager
def cutting(tunnel, seconds):
    """Cut all carriers again and again; yield a function that says how often one was cut."""
    stop = threading.Event()
    cuts = []

    def run():
        while not stop.wait(seconds):
            cuts.append(cut(tunnel))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: sum(cuts)
    finally:
        stop.set()
        thread.join()


# Cuts ---------------------------------------------------------------------------------------------


def test_bytes_arrive_once_and_in_order_while_the_tunnel_is_cut(way, eventually):
    _, relay, _, tunnel = way(digest)
    found, sent = hashlib.sha256(), 0
    with connect(tunnel) as connection, cutting(tunnel, 0.05):
        while sent < 30 or tunnel.tunnel.resumed < 5:
            connection.sendall(BLOCK)
            found.update(BLOCK)
            sent += 1
        connection.shutdown(socket.SHUT_WR)
        assert b"".join(received(connection)) == found.digest()
    eventually(lambda: relay.streams == 0)


def test_a_tunnel_that_went_silent_is_opened_again(way, monkeypatch, caplog):
    monkeypatch.setattr(streams, "SILENT_S", 0.5)
    monkeypatch.setattr(streams, "ALIVE_S", 0.1)
    _, _, network, tunnel = way(echo)
    with caplog.at_level(logging.INFO, "scalable.client"), connect(tunnel) as connection:
        connection.sendall(b"one")
        assert b"".join(received(connection, 3)) == b"one"
        network.lose()
        connection.sendall(b"two")
        assert b"".join(received(connection, 3)) == b"two"
    assert tunnel.tunnel.resumed == 1
    assert "interrupted: no data came" in caplog.text
    assert "is open again" in caplog.text


def test_a_writer_waits_for_the_tunnel_longer_than_its_kernel_would(way, monkeypatch, eventually):
    monkeypatch.setattr(streams, "TRICKLE_S", 0.1)
    _, _, network, tunnel = way(digest, window=2**20)
    with connect(tunnel) as connection:
        connection.sendall(b"x")
        connection.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 500)
        eventually(lambda: network.carriers)
        network.fault = OSError("no network")
        eventually(lambda: cut(tunnel))
        threading.Timer(1.5, setattr, (network, "fault", None)).start()
        for _ in range(30):
            connection.sendall(BLOCK)
        connection.shutdown(socket.SHUT_WR)
        expected = hashlib.sha256(b"x" + BLOCK * 30).digest()
        assert b"".join(received(connection)) == expected
    assert tunnel.tunnel.resumed == 1


def test_one_stream_tries_for_all_and_pauses_grow(way, eventually):
    _, _, network, tunnel = way(echo)
    with contextlib.ExitStack() as open_until:
        connections = [open_until.enter_context(connect(tunnel)) for _ in range(8)]
        for connection in connections:
            connection.sendall(b"a")
            assert connection.recv(1) == b"a"
        network.fault, network.dials = OSError("no network"), 0
        cut(tunnel)
        eventually(lambda: network.dials >= 2)
        threading.Event().wait(0.2)  # eight streams would try twice each
        tried = network.dials
        network.fault = None
        for connection in connections:
            connection.sendall(b"b")
            assert connection.recv(1) == b"b"
    assert 2 <= tried <= 7
    bounds = [tunnels.pause_s(failures) for failures in (1, 5, 50)]
    assert bounds[0] < bounds[1] < bounds[2] <= tunnels.LONGEST_PAUSE_S


# Ends ---------------------------------------------------------------------------------------------


def test_connections_are_closed_with_the_reason_if_there_is_no_tunnel_for_long(way, caplog):
    _, _, network, tunnel = way(echo, kept_s=1)
    with connect(tunnel) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        network.fault = OSError("no network")
        cut(tunnel)
        assert b"".join(received(connection)) == b""
    assert "the tunnel was interrupted for 1 s: no network" in caplog.text
    assert tunnel.tunnel.fault == "no network"


def test_a_client_that_vanishes_is_given_up_by_the_relay(way, eventually):
    target, relay, network, tunnel = way(echo, kept_s=1)
    with connect(tunnel) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        network.fault = TunnelClosedError("the machine is gone")
        cut(tunnel)
        assert target.ended.acquire(timeout=60)
    eventually(lambda: relay.streams == 0)


def test_a_connection_that_breaks_is_broken_off_at_the_other_end(way, eventually):
    target, relay, _, tunnel = way(lambda connection: connection.sendall(BLOCK * 100))
    connection = connect(tunnel)
    connection.sendall(b"go")
    connection.recv(1)
    connection.close()  # with unread data
    assert target.ended.acquire(timeout=60)
    eventually(lambda: relay.streams == 0)


def test_the_end_of_the_scheduler_ends_connections_although_the_relay_is_gone(
    way, monkeypatch, caplog
):
    monkeypatch.setattr(tunnels, "REFUSED_S", 0.2)
    _, _, network, tunnel = way(echo)
    with connect(tunnel) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        network.fault = ConnectionRefusedError("nobody listens")
        cut(tunnel)
        assert b"".join(received(connection)) == b""
    assert "the scheduler has stopped: nobody listens" in caplog.text


def test_a_relay_that_closes_ends_its_connections_at_once(way):
    _, relay, _, tunnel = way(echo)
    with connect(tunnel) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        relay.close()
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


def test_a_new_relay_does_not_know_the_streams_of_the_old_one(way, caplog):
    target, _, network, tunnel = way(echo)
    with connect(tunnel) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        new = StreamRelay(target.address)
        new.start()
        network.relay = new
        cut(tunnel)
        assert b"".join(received(connection)) == b""
        new.close()
    assert "was given up there, or the scheduler is new" in caplog.text


def test_closing_a_tunnel_lets_what_was_sent_arrive(way, monkeypatch):
    monkeypatch.setattr(tunnels, "CLOSE_TIMEOUT_S", 30.0)
    monkeypatch.setattr(tunnels, "OPEN_TIMEOUT_S", 60.0)
    found = []

    def serve(connection):
        connection.sendall(b"a")
        found.append(b"".join(received(connection)))

    target, _, network, tunnel = way(serve)
    with connect(tunnel) as connection:
        assert connection.recv(1) == b"a"
        network.fault = OSError("no network")
        cut(tunnel)
        connection.sendall(BLOCK)
    threading.Timer(0.2, setattr, (network, "fault", None)).start()
    tunnel.close()
    assert target.ended.acquire(timeout=60)
    assert found == [BLOCK]


def test_a_tunnel_that_is_left_open_does_not_keep_the_interpreter():
    code = """
import socket
from scalable.client.tunnel import BackgroundTunnel, Tunnel
async def dial():
    raise OSError("no network")
tunnel = BackgroundTunnel(lambda: Tunnel(dial))
connection = socket.create_connection(("127.0.0.1", tunnel.open()))
connection.sendall(b"a")
print("left")
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


# Strangers ----------------------------------------------------------------------------------------


def greeted(relay, hello):
    """Say hello on a connection; return the answer and the connection."""
    connection = socket.create_connection(("127.0.0.1", relay.port), timeout=60)
    connection.sendall(hello.encoded())
    data = b"".join(received(connection, ANSWER_LENGTH))
    return Answer.decoded(data).refusal, connection


def test_streams_are_continued_only_by_their_id_and_bounded_in_number(way, monkeypatch):
    monkeypatch.setattr(stream_relay, "MOST_STREAMS", 2)
    _, relay, _, _ = way(echo)
    own = [new_stream_id() for _ in range(3)]
    answers = []
    with contextlib.ExitStack() as ending:
        for hello in (
            Hello(own[0], False, 0, 100),
            Hello(own[0], True, 0, 100),
            Hello(own[0], True, 0, 100),
            Hello(own[1], True, 0, 100),
            Hello(own[2], True, 0, 100),
        ):
            refusal, connection = greeted(relay, hello)
            ending.enter_context(connection)
            answers.append(refusal)
    none = StreamRefusal.NONE
    assert answers == [StreamRefusal.UNKNOWN, none, none, none, StreamRefusal.FULL]


def test_strangers_are_hung_up_on(way, monkeypatch, eventually):
    monkeypatch.setattr(stream_relay, "GREETING_S", 0.2)
    monkeypatch.setattr(stream_relay, "FIRST_BYTE_S", 0.2)
    monkeypatch.setattr(stream_relay, "MOST_GREETINGS", 3)
    _, relay, _, _ = way(echo)
    address = ("127.0.0.1", relay.port)
    with socket.create_connection(address, timeout=60) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n".ljust(100))
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    # Those that say nothing, more of them than may wait, and a stream that carries nothing.
    for _ in range(2):
        mute = [socket.create_connection(address, timeout=60) for _ in range(5)]
        for stranger in mute:
            with stranger, contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
    refusal, connection = greeted(relay, Hello(new_stream_id(), True, 0, 100))
    assert refusal is StreamRefusal.NONE
    with connection:
        eventually(lambda: relay.streams == 0)


def test_a_tunnel_whose_scheduler_is_gone_refuses_connections_and_keeps_none():
    """A client tries again and again: each attempt ends at once, and no socket is left."""

    async def dial():
        raise OSError("nothing there")

    async def run():
        tunnel = Tunnel(dial)
        port = await tunnel.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.1)
        tunnel.abandon("its scheduler has ended")
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.1)
        gc.disable()
        try:
            left = [c for c in psutil.Process().net_connections() if c.laddr.port == port]
        finally:
            gc.enable()
        await tunnel.close()
        assert [c for c in left if c.status in ("ESTABLISHED", "CLOSE_WAIT", "LISTEN")] == []

    asyncio.run(run())
