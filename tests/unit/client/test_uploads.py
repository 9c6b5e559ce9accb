"""Uploads of large arguments while workers leave."""

import asyncio
from types import SimpleNamespace

import pytest
from dask.sizeof import sizeof

from scalable.client import executor_connection
from scalable.client.executor_connection import ExecutorConnection


class Cluster:
    """A client whose first uploads meet a worker that leaves."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.asked = []
        self.scheduler = SimpleNamespace(
            address="inproc://cluster", scalable_upload_places=self.places
        )

    async def places(self, tag, nbytes):
        return [f"worker of {tag} for {nbytes} bytes"] if tag else []

    def sync(self, function, *args):
        return asyncio.run(function(*args))

    async def scatter(self, values, workers=None, **_):
        self.asked.append(workers)
        if self.errors:
            raise self.errors.pop(0)
        return [f"future of {value}" for value in values]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(executor_connection, "UPLOAD_PAUSES_S", (0.0, 0.0))


@pytest.mark.parametrize("error", [KeyError("tls://127.0.0.1:1"), OSError("connection closed")])
def test_an_upload_to_a_worker_that_leaves_is_repeated(error):
    assert ExecutorConnection(Cluster(error, error)).upload("x") == "future of x"


def test_an_upload_that_never_succeeds_is_an_error():
    with pytest.raises(KeyError):
        ExecutorConnection(Cluster(*[KeyError("x")] * 3)).upload("x")


def test_an_upload_goes_to_a_worker_of_its_calls():
    cluster = Cluster(OSError("connection closed"))
    line, (place,) = ExecutorConnection(cluster), [f"worker of a for {sizeof('x')} bytes"]
    line.upload("w", "a")  # this scheduler may be one without our plug-ins
    line.set_slots({"a": 1})
    line.upload("x", "a")
    line.upload("y")
    assert cluster.asked == [None, None, [place], None]
