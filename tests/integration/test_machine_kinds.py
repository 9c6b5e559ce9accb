"""The kind of machine of real workers is in the record, and plans are made for it."""

import json

import pytest

from scalable import ScalableSession
from scalable.protocol.machine_kind import MACHINE_TYPE, machine_kind
from scalable.telemetry import read_history

MANIFEST = """\
version: 1
project: {name: kinds}
targets:
  local: {provider: local, processes: PROCESSES}
components:
  a: {cpus: 1, workers: 1}
tasks:
  double: {component: a, count: 6}
"""


@pytest.fixture
def session(tmp_path, monkeypatch, request):
    (tmp_path / "scalable.yaml").write_text(MANIFEST.replace("PROCESSES", request.param))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(MACHINE_TYPE, raising=False)
    machine_kind.cache_clear()
    return ScalableSession.from_yaml


def double(x):
    return 2 * x


@pytest.mark.parametrize("session", ["true", "false"], indirect=True)
def test_workers_tell_their_kind_of_machine_once_and_plans_use_it(session, tmp_path, monkeypatch):
    first = session()
    assert first.plan().machines == (machine_kind(),)
    with first as client:
        assert client.gather(client.map(double, range(6), tag="a")) == [*range(0, 12, 2)]
    lines = (first.run_path / "workers.jsonl").read_text().splitlines()
    told = [row["machine"] for row in map(json.loads, lines) if "machine" in row]
    assert told == [machine_kind()]
    assert "machine" not in (first.run_path / "tasks.jsonl").read_text()
    (run,) = read_history(first.run_path.parent, "kinds")
    assert {call.machine for call in run.calls} == {machine_kind()}

    here = session().plan()
    assert (here.machines, here.transferred) == ((machine_kind(),), 0.0)
    assert set(here.tasks["double"].measured_on) == {"local"}
    # The same target on a machine of another kind has not run.
    kind = machine_kind()
    monkeypatch.setenv(MACHINE_TYPE, "another kind")
    machine_kind.cache_clear()
    moved = session().plan()
    assert (moved.machines, moved.transferred) == (("another kind",), 1.0)
    assert set(moved.tasks["double"].measured_on) == {f"local on {kind}"}
    assert any(f"from target local on {kind}" in reason for reason in moved.reasons)
    machine_kind.cache_clear()
