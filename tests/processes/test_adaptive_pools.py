"""Pools that follow their load, and decisions that are carried out: real worker processes."""

import itertools
import json
import math
import os
import time

import pytest

from detached import change_constants
from scalable import AdaptiveScaler, ClusterError, ScalableSession, ScaleDecision
from scalable.runs.reading import read_run
from scalable.runs.report.run_report import report_on
from scalable.scaling.task_model import Kind
from scalable.scheduler.adaptation import PoolAdaptive

MANIFEST = """\
version: 1
project: {name: tests}
targets:
  local:
    provider: local
    processes: true
    adaptive: {minimum: 0, maximum: 4}
  fixed: {provider: local, processes: true, max_workers: 6}
components:
  a: {workers: {minimum: 0, maximum: 3}}
  b: {workers: {minimum: 0, maximum: 3}}
tasks:
  nap: {component: a, duration: 60s}
  long: {component: a, duration: 60s}
"""
#: How long idle workers are kept.
HOLDS = {"SHORT_HOLD_S": 0.3, "QUICK_HOLD_S": 0.5}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty directory with the manifest, and a state of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path / "runs"))
    for name in ("SCALABLE_TARGET", "SCALABLE_RUN_TARGET", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "scalable.yaml").write_text(MANIFEST)


@pytest.fixture(autouse=True)
def quick_decisions(monkeypatch):
    """Decide often, and keep idle workers for a moment only."""
    monkeypatch.setitem(PoolAdaptive.__init__.__kwdefaults__, "interval", 0.1)
    for name, value in HOLDS.items():
        monkeypatch.setattr(f"scalable.scaling.policy.{name}", value)


def rows(session, stream):
    text = (session.run_path / f"{stream}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def nap(i, seconds=0.01):
    time.sleep(seconds)
    return i, os.getpid()


def held(i, path):
    """Run until a file is there."""
    while not os.path.exists(path):
        time.sleep(0.02)
    return i, os.getpid()


def hold(client, count, path, **options):
    """Submit tasks that run until a file is there."""
    return client.map(held, range(count), [str(path)] * count, **options)


def test_from_zero_up_and_back_to_zero(tmp_path, eventually):
    session = ScalableSession.from_yaml(target="local")
    with session as client:
        assert client.worker_count() == 0
        futures = hold(client, 12, tmp_path / "over", tag="a", task="long")
        eventually(lambda: client.worker_count("a") == 3)
        (tmp_path / "over").touch()
        values = client.gather(futures)
        assert [i for i, _ in values] == list(range(12))
        assert len({pid for _, pid in values}) > 1
        del futures  # a worker that holds results nobody else can take would stay
        eventually(lambda: client.worker_count("a") == 0, timeout=120)
        # A second burst brings the pool back.
        assert client.gather(client.map(nap, [1, 2], tag="a", task="nap"))[1][0] == 2
    changes = session.scaling_history
    assert {row["tag"] for row in changes} == {"a"}
    assert {row["source"] for row in changes} == {"adaptive"}
    assert all(row["reason"] for row in changes)
    assert max(row["to"] for row in changes) <= 3
    assert changes[0]["from"] == 0
    assert 0 in [row["to"] for row in changes[1:]]
    # Up, down, and for the second burst up again: no flapping between.
    turns = [row["action"] for row in changes]
    assert sum(one != other for one, other in itertools.pairwise(turns)) <= 3, changes


def test_results_stay_where_their_workers_go(eventually):
    session = ScalableSession.from_yaml(target="local")
    with session as client:
        kept = client.map(nap, range(4), tag="a")
        client.gather(kept)
        # Another pool keeps a worker, which takes the results over.
        session.scale("b", 1)
        eventually(lambda: client.worker_count("a") == 0, timeout=120)
        assert [i for i, _ in client.gather(kept)] == [0, 1, 2, 3]
    ran = rows(session, "tasks")
    assert sum(row["state"] == "running" for row in ran) == 4


def test_only_the_pool_with_load_grows(tmp_path, eventually):
    session = ScalableSession.from_yaml(target="local")
    with session as client:
        one = client.submit(held, 0, str(tmp_path / "over"), tag="b")
        eventually(lambda: client.worker_count("b") == 1)
        many = hold(client, 20, tmp_path / "over", tag="a", task="long")
        eventually(lambda: client.worker_count("a") >= 2)
        assert session.cluster.pools["b"].wanted == 1
        (tmp_path / "over").touch()
        client.gather([one, *many])
    grown = [row["to"] for row in session.scaling_history if row["tag"] == "b"]
    assert max(grown) == 1


def test_a_worker_with_a_long_call_survives(tmp_path, eventually):
    session = ScalableSession.from_yaml(target="local")
    with session as client:
        long = client.submit(held, 0, str(tmp_path / "over"), tag="a")
        short = hold(client, 8, tmp_path / "short", tag="a", task="long")
        eventually(lambda: client.worker_count("a") == 3)
        (tmp_path / "short").touch()
        client.gather(short)
        eventually(lambda: session.cluster.pools["a"].wanted == 1, timeout=60)
        assert not long.done()
        (tmp_path / "over").touch()
        assert long.result(timeout=60)[0] == 0
    starts = [
        row
        for row in rows(session, "tasks")
        if row["task_id"] == long.key and row["state"] == "running"
    ]
    assert len(starts) == 1


def test_the_maximum_of_the_target_is_shared(tmp_path, eventually):
    session = ScalableSession.from_yaml(target="local")
    with session as client:
        futures = [call for tag in "ab" for call in hold(client, 10, tmp_path / "over", tag=tag)]
        eventually(lambda: client.worker_count() == 4)
        (tmp_path / "over").touch()
        client.gather(futures)
    total = {"a": 0, "b": 0}
    for row in session.scaling_history:
        total[row["tag"]] = row["to"]
        assert sum(total.values()) <= 4


REFUSED = (
    {"interval": 0},
    {"interval": math.nan},
    {"interval": math.inf},
    {"interval": "soon"},
    {"policy": 5},
)


def test_a_refused_adaptation_changes_nothing():
    session = ScalableSession.from_yaml(target="local")
    with session:
        before = session.cluster.adapt("a", 0, 2)
        kept = session.cluster.manager.controller.adaptation.pools
        for options in REFUSED:
            with pytest.raises(
                ClusterError, match="not a positive duration|interval='soon'|has no decide"
            ):
                session.cluster.adapt("a", 0, 1, **options)
            assert session.cluster.manager.controller.adaptation.pools == {**kept, "a": before}
            assert before.periodic_callback is not None


def test_a_pool_is_told_to_follow_its_load_and_no_more(eventually):
    session = ScalableSession.from_yaml(target="fixed")
    with session as client:
        cluster = session.cluster
        with pytest.raises(ClusterError, match="no pool 'c'; known pools: 'a', 'b'"):
            cluster.adapt("c", 0, 2)
        cluster.adapt("a", 0, 2)
        eventually(lambda: cluster.pools["a"].wanted == 0, timeout=90)
        assert cluster.pools["b"].wanted == 3
        cluster.adapt("a", 1, 2)  # instead of what was said before
        eventually(lambda: client.worker_count("a") == 1)
        assert cluster.adapt("a", enabled=False) is None
        futures = client.map(nap, range(8), tag="a")
        client.gather(futures)
        assert cluster.pools["a"].wanted == 1
        # Scaling by hand ends it too.
        cluster.adapt("b", 0, 3)
        session.scale("b", 2)
        assert not cluster.manager.controller.adaptation.pools


# Decisions that are carried out ------------------------------------------------------------------


def test_a_decision_is_carried_out_and_recorded(tmp_path, eventually):
    session = ScalableSession.from_yaml(target="fixed")
    with session as client:
        session.scale({"a": 2, "b": 2})
        eventually(lambda: client.worker_count() == 4)
        scaler = AdaptiveScaler({"a": 1}, {"a": 3}, cooldown_seconds=120)
        active = {"a": client.worker_count("a")}
        assert active == {"a": 2}
        futures = hold(client, 9, tmp_path / "over", tag="a")
        decision = scaler.evaluate([{"tag": "a"}] * 9, active)
        assert decision.workers_to_add == {"a": 1}
        session.apply(decision)
        eventually(lambda: client.worker_count("a") == 3)
        (tmp_path / "over").touch()
        client.gather(futures)
        scaler.reset_cooldown()
        session.cluster.apply(scaler.evaluate([], {"a": 3}))
        eventually(lambda: client.worker_count("a") == 1)
        assert client.worker_count("b") == 2
        session.apply(scaler.evaluate([], {"a": 1}))  # nothing to do
    changes = session.scaling_history[4:]
    assert [(r["tag"], r["from"], r["to"], r["source"]) for r in changes] == [
        ("a", 2, 3, "decision"),
        ("a", 3, 1, "decision"),
    ]
    assert "9 pending on 2 workers" in changes[0]["reason"]
    assert rows(session, "scaling") == session.scaling_history
    shown = str(report_on(read_run(session.run_path)))
    assert "9 pending on 2 workers" in shown


def test_a_decision_for_an_unknown_pool_changes_nothing():
    session = ScalableSession.from_yaml(target="fixed")
    with pytest.raises(ClusterError, match="is not running"):
        session.apply(ScaleDecision({"a": 1}))
    with session:
        decision = ScaleDecision({"a": 1, "c": 1}, {"b": 1})
        with pytest.raises(ClusterError, match="'c'.*known tags: 'a', 'b'"):
            session.apply(decision)
        with pytest.raises(ClusterError, match="no pool 'c'; known pools: 'a', 'b'"):
            session.cluster.apply(decision)
        assert {t: p.wanted for t, p in session.cluster.pools.items()} == {"a": 3, "b": 3}


def test_the_manifests_bounds_hold_for_decisions(caplog):
    session = ScalableSession.from_yaml(target="fixed")
    with session:
        session.apply(ScaleDecision({}, {"a": 1, "b": 2}, "less"))
        session.apply(ScaleDecision({"a": 9}, {}, "more"))
        assert session.cluster.pools["a"].wanted == 3
    assert "a is limited to 3" in caplog.text
    assert session.scaling_history[-1]["reason"] == "more; a is limited to 3"


def test_the_loop_of_a_workflow(eventually):
    """A workflow steers its pools itself, batch after batch."""
    session = ScalableSession.from_yaml(target="fixed")
    client = session.start()
    scaler = AdaptiveScaler(
        min_workers={"a": 1, "b": 1},
        max_workers={"a": 3, "b": 3},
        scale_up_threshold=0.8,
        scale_down_threshold=0.2,
        cooldown_seconds=120,
    )
    for batch in ([1, 2, 3], [4]):
        futures = [client.submit(nap, s, 0.1, tag="a") for s in batch]
        scaler.evaluate(
            pending_tasks=[{"tag": "gcam"} for _ in range(len(batch))],
            active_workers={"a": client.worker_count("gcam")},
        )
        client.gather(futures)
    session.close()
    assert [d.workers_to_add.get("a") for d in scaler.decision_history] == [1, None]


# Apart from the workflow -------------------------------------------------------------------------


def test_pools_aim_for_what_the_plan_does_and_know_earlier_runs():
    with ScalableSession.from_yaml(target="local") as client:
        client.gather(client.map(nap, range(6), [0.2] * 6, tag="a", task="nap"))
    session = ScalableSession.from_yaml(target="local")
    session.start(session.plan(objective="minimize cost", policy="safe"))
    try:
        adaptation = session.cluster.manager.controller.adaptation
        assert adaptation.pools["a"].policy.objective == "cost"
        assert adaptation.pools["a"].policy.hysteresis > 0.01
        expected = adaptation.model.mean_s(Kind("a", "nap"))
        assert 0.1 < expected < 30  # as the calls took, and not the minute of the manifest
    finally:
        session.close()


def test_a_detached_cluster_follows_its_load(tmp_path, eventually, monkeypatch):
    change_constants(tmp_path, monkeypatch, scaling__policy=HOLDS)
    session = ScalableSession.from_yaml(target="local")
    client = session.start(detach=True, name="one")
    try:
        assert client.worker_count() == 0
        futures = hold(client, 8, tmp_path / "over", tag="a", task="long")
        eventually(lambda: client.worker_count("a") > 1)
        (tmp_path / "over").touch()
        assert [i for i, _ in client.gather(futures)] == list(range(8))
        del futures
        eventually(lambda: client.worker_count("a") == 0, timeout=120)
        assert {row["source"] for row in session.scaling_history} == {"adaptive"}
        cluster = session.cluster
        cluster.adapt("a", 1, 2)
        eventually(lambda: client.worker_count("a") == 1)
        answer = cluster.apply(ScaleDecision({"a": 1}, {}, "one more"))
        assert answer == {"before": {"a": 1}, "after": {"a": 2}}
        with pytest.raises(ClusterError, match="no pool 'c'"):
            cluster.apply(ScaleDecision({"c": 1, "a": 1}))
        session.apply(ScaleDecision({}, {"a": 1}, "one less"))
        changes = session.scaling_history[-2:]
        assert [(r["to"], r["source"], r["reason"]) for r in changes] == [
            (2, "decision", "one more"),
            (1, "decision", "one less"),
        ]
    finally:
        session.delete()
