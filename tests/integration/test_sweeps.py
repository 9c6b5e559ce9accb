"""A sweep: one function, many sets of parameters, one table."""

import threading

import pandas as pd
import pytest

from scalable import CallFailed, ClusterError

MANIFEST = """\
version: 1
project: {name: sweeps}
targets:
  local: {provider: local, processes: false}
components:
  model: {cpus: 1, workers: 2}
"""
WORKERS = 2
GATE = threading.Event()


def run(seed, scale=1.0):
    if seed == 3:
        raise LookupError(seed)
    return seed * scale


def wait_for_gate(seed):
    GATE.wait(60)
    return seed


def test_the_table_has_parameters_and_what_became_of_them(client):
    sweep = client.sweep(run, [{"seed": s, "scale": 0.5} for s in range(5)], tag="model").wait(60)
    rows = sweep.table()
    assert [row["seed"] for row in rows] == list(range(5))
    assert [row["result"] for row in rows] == [0, 0.5, 1.0, None, 2.0]
    assert [row["state"] for row in rows] == ["done"] * 3 + ["failed", "done"]
    assert [row["error"] for row in rows] == [None] * 3 + ["LookupError: 3", None]
    for row in rows:
        assert row["worker"].startswith("model-")
        assert row["duration_s"] >= 0
    assert repr(sweep) == "<Sweep of 5 tasks: 4 done, 1 failed>"


def test_a_data_frame_gives_a_data_frame(client):
    frame = pd.DataFrame({"seed": [1, 2, 3], "scale": [1.0, 10.0, 1.0]})
    table = client.sweep(run, frame, tag="model").wait(60).table()
    assert list(table.columns) == [
        *frame.columns,
        "state",
        "result",
        "error",
        "duration_s",
        "worker",
    ]
    assert table["result"][:2].tolist() == [1.0, 20.0]
    assert table["state"].tolist() == ["done", "done", "failed"]


def test_results_and_failures_are_in_order(client):
    sweep = client.sweep(run, ({"seed": s} for s in (5, 3, 4, 3)), tag="model", scale=2)
    assert [bool(result) for result in sweep.results()] == [True, False, True, False]
    assert [type(failure) for failure in sweep.failures()] == [CallFailed] * 2
    assert [future.key for future in sweep] == [future.key for future in sweep.futures]


def test_succeeded_tasks_are_arguments_of_the_next(client):
    sweep = client.sweep(run, [{"seed": n} for n in (2, 3, 4)], tag="model").wait()
    assert sweep.succeeded() == [sweep.futures[0], sweep.futures[2]]
    assert client.submit(sum, sweep.succeeded(), tag="model").result(60) == 6


def test_the_table_does_not_wait(client):
    try:
        sweep = client.sweep(wait_for_gate, [{"seed": 1}, {"seed": 2}], tag="model")
        assert [row["state"] for row in sweep.table()] == ["pending"] * 2
        assert [row["worker"] for row in sweep.table()] == [None] * 2
        with pytest.raises(TimeoutError):
            sweep.wait("10ms")
    finally:
        GATE.set()
    assert sweep.results() == [1, 2]


def test_a_parameter_may_have_the_name_of_a_column(client):
    def of_state(state):
        return state

    (row,) = client.sweep(of_state, [{"state": "south"}], tag="model").wait(60).table()
    assert (row["state"], row["state_"], row["result"]) == ("south", "done", "south")


@pytest.mark.parametrize("empty", [[], pd.DataFrame({"seed": []})])
def test_an_empty_sweep_has_an_empty_table(client, empty):
    assert len(client.sweep(run, empty, tag="model").wait(60).table()) == 0


@pytest.mark.parametrize("rows", [[1], ["seed"], [{1: 2}], 5], ids=str)
def test_other_parameters_are_type_errors(client, rows):
    with pytest.raises(TypeError, match="DataFrame|iterable"):
        client.sweep(run, rows, tag="model")


def test_parameters_that_submit_would_take_are_refused(client):
    with pytest.raises(TypeError, match="'tag' of the sweep is also a keyword of submit"):
        client.sweep(run, [{"seed": 1}, {"tag": 2}], tag="model")
    with pytest.raises(ClusterError, match="no pool has the tag"):
        client.sweep(run, [{"seed": 1}], tag="modle")
