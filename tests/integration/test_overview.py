"""The overview of a cluster: its numbers are those of the scheduler and of the record."""

import time

import pytest

from scalable import ScalableSession
from scalable.model.overview import Events, Overview
from scalable.runs.summary import counts_of
from scalable.views.cluster_text import summary

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


def pair(x, y):
    return x, y


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
        with client.pool("big", record_calls=True) as pool:
            assert list(pool.map(abs, range(20))) == list(range(20))
        client.gather(futures)
        assert after_broken.exception() is not None
        now, events = when(session, lambda now: not now.counts.unfinished, since=0)
    rows = {(task.name, task.tag): task.counts for task in now.tasks}
    assert (rows["fit", "small"].done, rows["fail", "big"].failed) == (40, 3)
    assert (rows["fit", "big"].done, rows["fit", "big"].failed) == (50, 1)
    assert now.counts.unfinished == 0
    assert len(events.failures) == 3  # the call that could not run for lack of its input is none
    assert {row["tag"] for row in events.decisions} == {"small", "big"}
    assert sum(span[5] for span in events.spans) >= 44
    assert_equal(now, session)


def recorded(session):
    """Return the numbers of a session's tasks by state, from the rows of its record."""
    return counts_of(session.report().summary.tasks)


def assert_equal(now, session):
    """Compare the last overview of a session with the tasks of its finished run, field by field."""
    live = {}
    for task in now.tasks:
        live[task.name] = live[task.name] + task if task.name in live else task
    finished = session.report().summary.task_names
    assert finished.keys() == live.keys()
    for name, row in finished.items():
        assert row.task.counts == live[name].counts, name
        assert row.task.sums.keys() == live[name].sums.keys(), name
        for key, sums in row.task.sums.items():  # rows have microseconds
            assert sums == pytest.approx(live[name].sums[key], rel=1e-5, abs=1e-4), (name, key)


def test_running_and_queued_tasks_are_told_apart_and_their_end_is_predicted(session, tmp_path):
    told = tmp_path / "told"
    with session.start() as client:
        first = client.submit(wait, told, tag="big", pure=False)
        told.touch()
        first.result()
        told.unlink()
        futures = [client.submit(wait, told, tag="big", pure=False) for _ in range(5)]
        now, _ = when(session, lambda now: now.counts.running and now.counts.total == 6)
        pool = now.pools["big"]
        assert (now.counts.running, now.counts.queued) == (pool.used_slots, 5 - pool.used_slots)
        assert (pool.queued, pool.blocked) == (now.counts.queued, 0)
        assert now.end.low < now.end.at < now.end.high
        assert "unfinished tasks" in now.end.reason
        client.cancel(futures)
        told.touch()
        assert when(session, lambda now: now.counts.cancelled)[0].counts.cancelled == 5


def nap(number):
    time.sleep(0.01)
    return number


def test_tasks_of_an_executor_are_counted_once_while_they_move_from_the_client(session):
    with session.start() as client:
        results = client.executor(tag="big").imap(nap, range(300))
        totals = [session.overview().counts.total for _ in results]
        assert max(totals) == 300  # those that wait in the client, too
        now, _ = when(session, lambda now: now.counts.done == 300)
        assert now.counts.total == 300


def test_tasks_that_wait_for_their_inputs_are_blocked_and_others_are_queued(
    session, tmp_path, eventually
):
    told = tmp_path / "told"
    with session.start() as client:
        first = client.submit(wait, told, tag="big", pure=False)
        later = [client.submit(pair, first, n, tag="big", pure=False) for n in range(10)]
        now, _ = when(session, lambda now: now.counts.running and now.counts.total == 11)
        assert (now.counts.queued, now.counts.blocked) == (0, 10)
        assert (now.pools["big"].queued, now.pools["big"].blocked) == (0, 10)
        assert "1 running, 10 blocked" in "\n".join(summary(now))
        full = [client.submit(wait, told, tag="big", pure=False) for _ in range(20)]
        now, _ = when(session, lambda now: now.counts.total == 31)
        assert now.counts.queued == 21 - now.counts.running > 0
        assert now.counts.blocked == 10
        eventually(lambda: recorded(session).running == now.counts.running, timeout=60)
        assert recorded(session) == now.counts
        told.touch()
        client.gather([*later, *full])
        assert recorded(session).blocked == 0


def test_an_overview_survives_its_json_form(session):
    with session.start() as client:
        client.submit(fit, 1, tag="small").result()
        now, _ = overview(session)
    assert Overview.from_dict(now.to_dict()) == now
    assert Overview.from_dict({**now.to_dict(), "later": 1}) == now
