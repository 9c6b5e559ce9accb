"""Calls whose workers are ended for lack of memory are tried again where there is more."""

import os
import time
from pathlib import Path

import numpy as np
from distributed import get_worker

from scalable.protocol.handlers import Handler

MANIFEST = """\
version: 1
project: {name: memory}
targets:
  local: {provider: local, processes: true}
components:
  small: {cpus: 1, memory: 400M, workers: 1}
  large: {cpus: 1, memory: 4G, workers: 1}
tasks:
  fit: {component: small, memory_on_retry: 1.5x}
  load: {component: small, retries: {count: 3, on: [OSError]}}
"""
WORKERS = 2


def fill():
    """Fill the memory of a small worker; return the pool."""
    (tag,) = get_worker().state.total_resources
    kept = []
    while tag == "small":
        kept.append(np.ones(2_000_000))
        time.sleep(0.01)
    return tag


def stay(path):
    """Stay on a small worker, whose process id is written to a file; return the pool."""
    (tag,) = get_worker().state.total_resources
    with Path(path).open("a") as file:
        file.write(f"{tag} {get_worker().name} {os.getpid()}\n")
    while tag == "small":
        time.sleep(0.01)
    return tag


def test_a_call_that_fills_its_worker_moves_to_the_larger_pool(client):
    future = client.submit(fill, task="fit", errors="keep")
    assert future.result(120) == "large"
    assert client.profile(future)["tag"] == "large"


def test_a_policy_that_does_not_name_it_tries_no_lack_of_memory_again(client):
    failed = client.submit(fill, task="load", errors="keep").result(120)
    assert type(failed.exception).__name__ == "OutOfMemory"
    assert (failed.task, failed.tries) == ("load", 1)


def test_a_call_whose_place_ended_its_worker_for_memory_moves(client, tmp_path):
    told = tmp_path / "told"
    future = client.submit(stay, str(told), task="fit")
    while not told.exists() or not told.read_text().endswith("\n"):
        time.sleep(0.01)
    tag, name, pid = told.read_text().split()
    assert tag == "small"
    os.kill(int(pid), 9)
    client._ask(Handler.ENDED_FOR_MEMORY, workers=[name])
    assert future.result(120) == "large"
