"""Overviews of single workers: their states and slots, in answers of limited length."""

from functools import partial
from itertools import count
from types import SimpleNamespace

from distributed.core import Status
from distributed.scheduler import WorkerState

from scalable.scheduler.overviews import WORKERS_AT_ONCE, worker_rows

PORTS = count(1)


def worker(name, tag, status=Status.running):
    made = WorkerState(
        address=f"tls://10.0.0.1:{next(PORTS)}", status=status, pid=1, name=name, nthreads=2,
        memory_limit=10**9, local_directory="/", nanny=None, server_id=name, services={},
        versions={}, extra={},
    )  # fmt: skip
    made.resources = {tag: 4} if tag else {}
    made.metrics = {"memory": 10**8}
    return made


def rows(*workers, leaves=()):
    cluster = SimpleNamespace(
        scheduler=SimpleNamespace(workers={ws.address: ws for ws in workers}, handlers={}),
        pools=lambda: {"a": 1, "b": 1},
        removals=SimpleNamespace(drains=lambda ws: str(ws.name) in leaves),
    )
    return partial(worker_rows, cluster)


def test_a_pool_is_chosen_and_long_lists_come_in_parts():
    made = rows(*(worker(f"a-{n:04d}", "a") for n in range(600)), worker("b-1", "b"))
    assert [w["name"] for w in made("b")["workers"]] == ["b-1"]
    names, first = [], 0
    while first < made("a")["total"]:
        part = made("a", first)["workers"]
        assert len(part) <= WORKERS_AT_ONCE
        names += [w["name"] for w in part]
        first += len(part)
    assert names == [f"a-{n:04d}" for n in range(600)]
