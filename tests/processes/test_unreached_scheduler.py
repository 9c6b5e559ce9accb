"""Workers of a place that cannot reach the scheduler: they say so, and another place takes over."""

import contextlib
import socket

import pytest

import scalable
from verbs import program, status, up

MANIFEST = """\
version: 1
project: {name: tests}
targets:
  local: {provider: local, processes: true, max_workers: 2, spill_after: 25s}
  refusing: {provider: local, processes: true, max_workers: 2}
  silent: {provider: local, processes: true, max_workers: 2}
managers:
  - {target: refusing, priority: 0, limits: {a: 1}, scheduler_address: "127.0.0.1:%d"}
  - {target: silent, priority: 1, limits: {a: 1}, scheduler_address: "tls://127.0.0.1:%d"}
  - {target: local, priority: 2}
components:
  a: {cpus: 1, workers: 2}
"""
#: A minute, and as much again for a machine that is busy with other tests.
BOUND_S = 100.0


@contextlib.contextmanager
def port_that_refuses():
    """A port that nobody listens on, and that nobody else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextlib.contextmanager
def port_that_drops():
    """A port whose backlog is full: the system drops what asks for a connection."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(server.getsockname())
        yield server.getsockname()[1]


def note(path, number):
    with open(path, "a") as file:
        file.write(f"{number}\n")
    return number


def why_of(manager):
    found = {m["id"]: m for m in status("one")["managers"]}
    return found.get(manager, {}).get("pools", {}).get("a", {}).get("waiting") or ""


@pytest.mark.slow
def test_unreached_places_are_named_with_the_address_and_passed_over(
    place, tmp_path, eventually, caplog
):
    with port_that_refuses() as refusing, port_that_drops() as silent:
        place(text=MANIFEST % (refusing, silent))
        up("--name", "one", "--no-wait")
        try:
            eventually(lambda: status("one")["address"], "the scheduler")
            with scalable.connect("one") as client:
                ran = tmp_path / "ran"
                calls = client.map(note, [str(ran)] * 40, range(40), tag="a", pure=False)
                for manager, port in (("refusing", refusing), ("silent", silent)):
                    address = f"tls://127.0.0.1:{port}"
                    eventually(lambda m=manager, a=address: a in why_of(m), manager, BOUND_S)
                    eventually(lambda a=address: a in caplog.text, "a warning", BOUND_S)
                    log = program("logs", "one", "--format", "json").stdout
                    assert f"{address} has not answered" in log
                assert client.gather(calls) == list(range(40))
                # Both workers come from the place that delivers.
                eventually(lambda: status("one")["pools"]["a"]["running"] == 2, "spilling", BOUND_S)
            assert sorted(map(int, ran.read_text().split())) == list(range(40))
            text = program("status", "one").stdout
            assert "refusing: a: the last start failed: " in text
        finally:
            program("down", "one", "--yes")


def test_an_address_of_the_scheduler_that_is_none_is_refused(place):
    place(text=MANIFEST.replace('"127.0.0.1:%d"', "here").replace("%d", "1"))
    done = program("up", "--target", "local", "--name", "one")
    assert done.returncode == 2
    assert "scheduler_address: 'here'" in done.stderr
