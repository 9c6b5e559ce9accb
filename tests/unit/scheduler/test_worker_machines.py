"""Rows of workers tell the kind of machine that each worker told."""

import pytest
from distributed.core import Status
from distributed.scheduler import WorkerState

from scalable.protocol.machine_kind import MACHINE_KIND
from scalable.scheduler.recorder import Recorder
from unit.scheduler.test_ledger import FakeScheduler


class Rows(list):
    def extend(self, stream, rows):
        super().extend((stream, dict(row)) for row in rows)


def worker(**told):
    made = WorkerState(
        address="tls://10.0.0.1:1", status=Status.running, pid=1, name="a-1", nthreads=1,
        memory_limit=10**9, local_directory="/", nanny=None, server_id="a-1", services={},
        versions={}, extra=told,
    )  # fmt: skip
    made.resources = {"a": 1}
    return made


@pytest.mark.parametrize(
    ("told", "machine"),
    [
        ({MACHINE_KIND: "AMD EPYC x86_64"}, {"machine": "AMD EPYC x86_64"}),
        ({MACHINE_KIND: "two\nlines"}, {"machine": "two lines"}),
        ({MACHINE_KIND: {"no": "text"}}, {}),
        ({}, {}),
    ],
)
def test_the_row_of_a_start_has_the_kind_of_machine(told, machine):
    rows = Rows()
    recorder = Recorder(FakeScheduler(), rows, ["a"])
    recorder.worker_added(worker(**told))
    ((stream, row),) = rows
    assert (stream, row["event"], row["host"]) == ("workers", "started", "10.0.0.1")
    assert {k: v for k, v in row.items() if k == "machine"} == machine
