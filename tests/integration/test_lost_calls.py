"""Calls whose workers are lost fail with the reason, and calls without memory after one more try."""

import os
import re
import signal
import time

import pytest
from distributed.scheduler import KilledWorker

from scalable.protocol.lost_calls import OutOfMemory

MANIFEST = """
version: 1
project: {name: losses}
targets:
  local: {provider: local, processes: true}
components:
  small: {cpus: 1, memory: 250M, workers: 1}
  submit: {cpus: 1, workers: 1}
  executor: {cpus: 1, workers: 1}
"""
WORKERS = 3


def eat(megabytes, started):
    with open(started, "a") as file:
        file.write("x")
    kept = [bytearray(1_000_000) for _ in range(megabytes)]
    time.sleep(20)
    return len(kept)


def die(started):
    with open(started, "a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("way", ["submit", "executor"])
def test_a_call_without_memory_fails_after_one_more_try_and_says_what_to_set(
    client, tmp_path, caplog, way
):
    started = tmp_path / "started"
    with client.pool(tag="small") as pool:
        submit = pool.submit if way == "executor" else client.submit
        options = {} if way == "executor" else {"tag": "small"}
        with pytest.raises(KilledWorker) as caught:
            submit(eat, 400, str(started), **options).result(timeout=120)
    assert isinstance(caught.value, OutOfMemory)
    text = str(caught.value)
    assert re.match("call 'eat' used (more than|up) 250M, the memory of component 'small'; ", text)
    assert "it got to " in text
    assert "set memory: " in text
    assert len(started.read_text()) <= 2
    # The pool goes on, and takes no crash loop from it.
    assert client.submit(abs, -1, tag="small").result(timeout=60) == 1
    assert "is degraded" not in caplog.text


@pytest.mark.parametrize("way", ["submit", "executor"])
def test_a_call_that_kills_its_workers_fails_with_the_reason(session, tmp_path, way):
    client = session.client
    with client.pool(tag=way) as pool:
        submit = pool.submit if way == "executor" else client.submit
        options = {} if way == "executor" else {"tag": way}
        with pytest.raises(KilledWorker) as caught:
            submit(die, str(tmp_path / "started"), **options).result(timeout=150)
    text = str(caught.value)
    assert "call 'die' is given up" in text
    assert "it was killed by SIGKILL" in text
    pool = session.cluster.pools[way]
    assert pool.lost >= 3
    assert "it was killed by SIGKILL" in pool.last_loss
