"""Calls whose workers are lost fail with the reason, and calls without memory after one more try."""

import dataclasses
import os
import re
import signal
import threading

import pytest
from distributed.scheduler import KilledWorker

from scalable.protocol.failures import OutOfMemory
from scalable.runs.failed import failed_rows
from scalable.runs.reading import read_run
from scalable.runs.summary import summarize

MANIFEST = """
version: 1
project: {name: losses}
targets:
  local: {provider: local, processes: true}
components:
  small: {cpus: 1, memory: 250M, workers: 1}
  source: {cpus: 1, workers: 1}
  submit: {cpus: 1, workers: 1}
  executor: {cpus: 1, workers: 1}
"""
WORKERS = 4


def eat(megabytes, started):
    with open(started, "a") as file:
        file.write("x")
    kept = [bytearray(1_000_000) for _ in range(megabytes)]
    threading.Event().wait()
    return len(kept)


def texts(megabytes):
    return ["x" * 1_000_000 for _ in range(megabytes)]


def given(client):
    return texts(300)


def gathered(client):
    return client.map(texts, [30] * 10, tag="source", pure=False)


def die(started):
    with open(started, "a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("way", ["submit", "executor"])
def test_a_call_without_memory_fails_after_one_more_try_and_says_what_to_set(
    session, tmp_path, caplog, way, eventually
):
    client, started = session.client, tmp_path / "started"
    with client.pool(tag="small") as pool:
        submit = pool.submit if way == "executor" else client.submit
        options = {} if way == "executor" else {"tag": "small"}
        with pytest.raises(KilledWorker) as caught:
            submit(eat, 400, str(started), **options).result(timeout=120)
    assert isinstance(caught.value, OutOfMemory)
    text = str(caught.value)
    assert re.match("task 'eat' used (more than|up) 250M, the memory of component 'small'; ", text)
    assert "it got to " in text
    # It was stopped before its end, so that it may need much more than it got to.
    advice = re.search(r"before it was stopped; set memory: (\d+)M or more", text)
    assert advice is not None
    assert int(advice[1]) >= 500
    assert len(started.read_text()) <= 2
    # The pool goes on, and takes no crash loop from it.
    assert client.submit(abs, -1, tag="small").result(timeout=60) == 1
    assert "is degraded" not in caplog.text
    workers = session.run_path / "workers.jsonl"
    eventually(lambda: "ran out of memory (limit 250M)" in workers.read_text(), "the record")


@pytest.mark.filterwarnings("ignore:Sending large graph")
@pytest.mark.parametrize(("inputs", "error"), [(given, OutOfMemory), (gathered, MemoryError)])
def test_task_whose_inputs_fill_workers_fails(session, inputs, error):
    """Dask refuses results of other tasks that are larger than the worker's memory."""
    client, lost = session.client, session.cluster.pools["small"].lost
    future = client.submit(len, inputs(client), tag="small")
    with pytest.raises(error, match="memory of component 'small'|has memory_limit set to"):
        future.result(timeout=300)
    assert session.cluster.pools["small"].lost - lost <= 2
    assert client.submit(abs, -1, tag="small").result(timeout=300) == 1
    assert session.cluster.pools["small"].reason is None


class KillsWhereItIsLoaded:
    """A function whose unpickling kills its worker, such as one whose module crashes."""

    def __init__(self, started):
        self.started = started

    def __reduce__(self):
        return die, (self.started,)

    def __call__(self):
        pass


def test_a_function_that_kills_workers_as_it_is_loaded_is_given_up(session, tmp_path):
    started = str(tmp_path / "started")
    with session.client.pool(tag="source") as pool:
        with pytest.raises(KilledWorker, match="is given up"):
            pool.submit(KillsWhereItIsLoaded(started)).result(timeout=150)
        assert pool.submit(abs, -1).result(timeout=120) == 1
    assert len((tmp_path / "started").read_text()) <= 4


@pytest.mark.parametrize("way", ["submit", "executor"])
def test_a_call_that_kills_its_workers_fails_with_the_reason(session, tmp_path, way, eventually):
    client = session.client
    with client.pool(tag=way) as pool:
        submit = pool.submit if way == "executor" else client.submit
        options = {} if way == "executor" else {"tag": way}
        with pytest.raises(KilledWorker) as caught:
            submit(die, str(tmp_path / "started"), **options).result(timeout=150)
    text = str(caught.value)
    assert "task 'die' is given up" in text
    assert "it was killed by SIGKILL" in text
    pool = session.cluster.pools[way]
    assert pool.lost >= 3
    assert "it was killed by SIGKILL" in pool.last_loss
    check_counted_once(session, way, len((tmp_path / "started").read_text()), eventually)


def check_counted_once(session, tag, begun, eventually):
    """The failed task counts once, in the overview and in the record, and so does each rerun."""
    overviews = session.cluster.manager.controller.overviews

    async def ask():
        overviews._made_at = 0.0
        return overviews.present()

    def row():
        return next(task for task in session.cluster.sync(ask).tasks if task.tag == tag)

    eventually(lambda: row().counts.failed)
    row = row()
    assert (row.counts.failed, row.counts.unfinished) == (1, 0)

    def recorded():
        record = read_run(session.run_path)
        return any((r["tag"], r["state"]) == (tag, "failed") for r in record.tasks) and record

    record = eventually(recorded)
    rows = [row for row in failed_rows(record.failures) if row.tag == tag]
    assert [(row.count, row.details.tries) for row in rows] == [(1, begun)]
    assert tag == "submit" or "started" in rows[0].details.arguments
    assert rows[0].details.worker.startswith(tag)
    own = dataclasses.replace(record, tasks=[r for r in record.tasks if r.get("tag") == tag])
    summary = summarize(own)
    assert summary.tasks == {"failed": 1}
    assert summary.rerun_reasons == {"worker lost": begun - 1}
