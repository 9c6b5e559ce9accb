"""The overview of a cluster: its numbers are those of the scheduler and of the record."""

import time

import pytest

from scalable import ScalableSession
from scalable.model.overview import Events, Overview

MANIFEST = """\
version: 1
project: {name: tests}
targets: {local: {provider: local, max_workers: 3, processes: false}}
components: {small: {cpus: 1, memory: 300M}, big: {cpus: 1, memory: 300M}}
tasks:
  fit: {component: small, duration: 1s}
"""


def fit(x):
    time.sleep(0.01)
    return x


def fail(x):
    raise ValueError(f"no {x}")


def wait(told):
    while not told.exists():
        time.sleep(0.01)


@pytest.fixture
def session(tmp_path):
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    return ScalableSession.from_yaml(tmp_path / "scalable.yaml", "local")


def overview(session, since=None):
    async def ask():
        overviews = session.cluster.manager.controller.overviews
        overviews._made_at = 0.0  # not one that was made a moment ago
        return overviews.answer(since)

    answer = session.cluster.sync(ask)
    events = answer["events"]
    return Overview.from_dict(answer["overview"]), events and Events.from_dict(events)


def when(session, holds, since=None):
    """Return the first overview for which something holds, or the last one after a minute."""
    deadline = time.monotonic() + 60
    while True:
        found = overview(session, since)
        if holds(found[0]) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def test_numbers_are_those_of_the_record(session):
    with session.start() as client:
        futures = [client.submit(fit, n, task="fit", pure=False) for n in range(40)]
        broken = [client.submit(fail, n, tag="big", pure=False) for n in range(3)]
        after_broken = client.submit(fit, broken[0], tag="big")
        with client.pool("big") as pool:
            assert list(pool.map(fit, range(50))) == list(range(50))
        client.gather(futures)
        assert after_broken.exception() is not None
        now, events = when(
            session, lambda now: not (now.calls.waiting or now.calls.running), since=0
        )
    rows = {(task.name, task.tag): task.counts for task in now.tasks}
    assert (rows["fit", "small"].done, rows["fail", "big"].failed) == (40, 3)
    assert (rows["fit", "big"].done, rows["fit", "big"].failed) == (50, 1)
    assert now.calls.running == now.calls.waiting == 0
    assert len(events.failures) == 3  # the call that could not run for lack of its input is none
    assert {row["tag"] for row in events.decisions} == {"small", "big"}
    assert sum(span[5] for span in events.spans) >= 44


def test_running_and_waiting_calls_are_told_apart_and_their_end_is_predicted(session, tmp_path):
    told = tmp_path / "told"
    with session.start() as client:
        first = client.submit(wait, told, tag="big", pure=False)
        told.touch()
        first.result()
        told.unlink()
        futures = [client.submit(wait, told, tag="big", pure=False) for _ in range(5)]
        now, _ = when(session, lambda now: now.calls.running and now.calls.total == 6)
        pool = now.pools["big"]
        assert (now.calls.running, now.calls.waiting) == (pool.used_slots, 5 - pool.used_slots)
        assert pool.waiting == now.calls.waiting
        assert now.end.low < now.end.at < now.end.high
        assert "unfinished tasks" in now.end.reason
        client.cancel(futures)
        told.touch()
        assert when(session, lambda now: now.calls.cancelled)[0].calls.cancelled == 5


def test_an_overview_survives_its_json_form(session):
    with session.start() as client:
        client.submit(fit, 1, tag="small").result()
        now, _ = overview(session)
    assert Overview.from_dict(now.to_dict()) == now
    assert Overview.from_dict({**now.to_dict(), "later": 1}) == now
