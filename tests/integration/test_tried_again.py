"""Failed calls are tried again as the policy of their task says, without holding a slot."""

import logging
import os
import time
from pathlib import Path

import pytest
from distributed import get_worker, wait

from scalable.runs.reading import read_run

MANIFEST = """\
version: 1
project: {name: tries}
targets:
  local: {provider: local}
components:
  small: {cpus: 1, memory: 4G, workers: 1}
  large: {cpus: 1, memory: 8G, workers: 1}
  empty: {cpus: 1, memory: 7G, workers: {minimum: 0, maximum: 3}}
  vast: {cpus: 1, memory: 80G, workers: 0}
tasks:
  fetch: {component: small, retries: {count: 3, backoff: 20ms, on: [OSError]}}
  patient: {component: small, retries: {count: 1, backoff: 1h}}
  fit: {component: small, memory_on_retry: 1.5x}
  plain: {component: small}
  stuck: {component: large, memory_on_retry: 1.5x}
"""
WORKERS = 2


def fail_until(path, good, kind=OSError):
    """Fail until the try with this number; return the number of the try and the pool."""
    tries = len(os.listdir(path)) + 1
    Path(path, str(tries)).touch()
    if tries < good:
        raise kind(f"try {tries}")
    return tries, next(iter(get_worker().state.total_resources))


def fail_in(tag):
    if tag in get_worker().state.total_resources:
        raise MemoryError("no room")
    return next(iter(get_worker().state.total_resources))


def test_a_call_is_tried_again_until_it_succeeds(client, tmp_path):
    assert client.submit(fail_until, str(tmp_path), 3, task="fetch").result(30) == (3, "small")


def test_a_call_that_has_no_further_try_fails(client, tmp_path):
    future = client.submit(fail_until, str(tmp_path), 9, task="fetch")
    with pytest.raises(OSError, match="try 4"):
        future.result(30)


def test_an_error_that_is_not_named_is_not_tried_again(client, tmp_path):
    future = client.submit(fail_until, str(tmp_path), 2, ValueError, task="fetch")
    with pytest.raises(ValueError, match="try 1"):
        future.result(30)
    assert len(os.listdir(tmp_path)) == 1


def test_the_tries_of_a_call_itself_come_first(client, tmp_path):
    future = client.submit(fail_until, str(tmp_path), 9, ValueError, task="fetch", retries=1)
    with pytest.raises(ValueError, match="try 2"):
        future.result(30)


def test_a_call_that_waits_holds_no_slot_and_says_for_what(client, tmp_path):
    waiting = client.submit(fail_until, str(tmp_path), 2, task="patient")
    while not os.listdir(tmp_path):
        time.sleep(0.01)
    # The only worker of the pool takes other calls meanwhile.
    others = client.map(abs, range(20), task="plain")
    wait(others, timeout=30)
    told = str(client.explain(waiting.key))
    assert "attempt 2 of 2 starts in " in told
    assert told.endswith(", after OSError: try 1")
    assert waiting.status == "pending"
    waiting.cancel()


def test_a_call_without_memory_moves_to_the_larger_pool(client):
    assert client.submit(fail_in, "small", task="fit").result(30) == "large"


def test_a_call_that_has_no_larger_pool_stays_where_it_is(client, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scalable.scheduler")
    future = client.submit(fail_until, str(tmp_path), 2, MemoryError, task="stuck")
    assert future.result(30) == (2, "large")
    assert "in pool 'large' again: no pool like it with enough memory has workers" in caplog.text


def test_a_call_without_a_policy_is_not_tried_again(client, tmp_path):
    future = client.submit(fail_until, str(tmp_path), 2, MemoryError, tag="small")
    with pytest.raises(MemoryError):
        future.result(30)


def test_an_executor_says_that_it_tries_nothing_again(client, caplog):
    with client.pool(task="plain"):
        assert "are to be retried" not in caplog.text
    with client.pool(task="fetch"):
        assert "task 'fetch' has `retries:`" in caplog.text


def test_tries_are_recorded_once(client, session, tmp_path):
    future = client.submit(fail_until, str(tmp_path), 9, task="fetch", key="fetch-counted")
    with pytest.raises(OSError, match="try 4"):
        future.result(30)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        run = read_run(session.run_path)
        rows = [row for row in run.tasks if row["task_id"] == "fetch-counted"]
        failed = [r for r in run.failures if r["details"].get("task_id") == "fetch-counted"]
        if failed and rows and rows[-1]["state"] == "failed":
            break
        time.sleep(0.05)
    assert [row["reason"] for row in rows if row["state"] == "rerun"] == 3 * ["failed, retried"]
    assert [row["details"]["tries"] for row in failed] == [4]
