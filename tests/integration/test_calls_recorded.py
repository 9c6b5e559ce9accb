"""What is known of calls in bundles: profiles, records, output, and pools that follow their load."""

import json
import os
import sys
import time

import pytest
from distributed import Client

from scalable import ScalableSession
from scalable.report import build

MANIFEST = """\
version: 1
project: {name: calls}
targets:
  local: {provider: local, processes: true}
components:
  a: {cpus: 1, workers: 2}
"""
ROW = {
    "task_name", "tag", "worker", "state", "timestamp",
    "queued_s", "transfer_s", "duration_s", "cpu_s", "peak_memory",
}  # fmt: skip


@pytest.fixture
def session(tmp_path, monkeypatch):
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    session = ScalableSession.from_yaml()
    yield session
    session.close()


@pytest.fixture
def client(session):
    client = session.start()
    client.wait_for_workers(2, timeout=60)
    return client


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return bytes(30_000_000)[:1]


def fail(x):
    raise LookupError(f"no {x}")


def fail_at_three(x):
    return x if x != 3 else fail(x)


def speak(x):
    print("said", x)
    print("more" * 2, end="")
    return x


def nap(seconds):
    time.sleep(seconds)


def rows(session, stream="tasks"):
    lines = (session.run_path / f"{stream}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_profiles_of_calls_in_pools(client):
    with client.pool(tag="a") as pool:
        future, failed = pool.submit(burn, 0.3), pool.submit(fail, 1)
        waiting = pool.submit(nap, 30)
        assert future.result(timeout=60) == b"\0"
        profile = future.profile()
        assert profile.keys() == ROW
        assert (profile["task_name"], profile["tag"], profile["state"]) == (
            "burn",
            "a",
            "succeeded",
        )
        assert profile["worker"].startswith("a-")
        assert profile["duration_s"] >= profile["cpu_s"] >= 0.3
        assert profile["peak_memory"] > 30_000_000
        assert profile["queued_s"] >= 0
        assert abs(profile["timestamp"] - time.time()) < 60
        failed.exception(timeout=60)
        assert failed.profile()["state"] == "failed"
        assert failed.profile()["duration_s"] >= 0
        with pytest.raises(ValueError, match="has not ended"):
            waiting.profile()
        waiting.cancel()
        assert waiting.profile()["state"] == "cancelled"


def test_profiles_of_short_calls_follow_each_other_and_share_what_their_thread_used(client):
    pool = client.pool(tag="a")
    futures = [pool.submit(abs, -x) for x in range(3000)]
    assert [future.result() for future in futures] == list(range(3000))
    by_worker = {}
    for future in futures:
        profile = future.profile()
        assert profile["duration_s"] >= profile["cpu_s"] >= 0
        began = profile["timestamp"] - profile["duration_s"]
        by_worker.setdefault(profile["worker"], []).append((began, profile))
    for worker, told in by_worker.items():
        told.sort(key=lambda pair: pair[0])
        ends = [profile["timestamp"] for _, profile in told]
        begins = [began for began, _ in told]
        assert all(b >= e - 1e-3 for b, e in zip(begins[1:], ends, strict=False)), worker
        assert sum(profile["cpu_s"] for _, profile in told) > 0


def test_a_call_that_sleeps_among_short_ones_uses_no_cpu(client):
    pool = client.pool(tag="a")
    assert list(pool.map(abs, range(2000)))  # now bundles are long
    futures = [pool.submit(time.sleep, 0.05 if x % 100 == 50 else 0) for x in range(400)]
    slept = [f.profile() for x, f in enumerate(futures) if x % 100 == 50 and f.wait() is None]
    assert len(slept) == 4
    assert all(profile["duration_s"] >= 0.05 > 0.025 > profile["cpu_s"] for profile in slept)


def test_profiles_of_dask_futures(client):
    future, failed = client.submit(burn, 0.3, tag="a"), client.submit(fail, 1, tag="a")
    future.result()
    profile = client.profile(future)
    assert profile.keys() == ROW
    assert (profile["task_name"], profile["tag"], profile["state"]) == ("burn", "a", "succeeded")
    assert profile["duration_s"] >= 0.3
    assert profile["peak_memory"] > 30_000_000
    failed.exception()
    assert client.profile(failed)["state"] == "failed"
    client.restart()
    future = client.submit(burn, 0.1, tag="a")
    future.result()
    assert client.profile(future)["duration_s"] >= 0.1
    waiting = client.submit(nap, 30, tag="a")
    with pytest.raises(ValueError, match="has not ended"):
        client.profile(waiting)
    waiting.cancel()
    assert "children" in client.profile()  # Dask's own


def test_a_bundle_has_one_row_with_counts_and_quantiles(session, client):
    with client.pool(tag="a") as pool:
        futures = [pool.submit(fail_at_three, i) for i in range(2000)]
        assert sum(future.exception(timeout=60) is not None for future in futures) == 1
    session.close()
    final = [row for row in rows(session) if row.get("calls", {}).get("count")]
    assert len(final) < 500
    assert sum(row["calls"]["count"] for row in final) == 2000
    assert sum(row["calls"]["failed"] for row in final) == 1
    assert all(row["task_name"] == "fail_at_three" for row in final)
    for row in final:
        if not row["calls"]["count"]:
            continue  # its calls were taken back
        quantiles = [row["calls"]["quantiles_s"][q] for q in ("0", "0.5", "0.95", "1")]
        assert quantiles == sorted(quantiles)
    (failure,) = rows(session, "failures")
    assert (failure["failure_class"], failure["message"]) == ("LookupError", "no 3")
    summary = json.loads((session.run_path / "summary.json").read_text())
    assert summary["tasks"] == {"succeeded": 1999, "failed": 1}
    assert summary["task_names"]["fail_at_three"]["count"] == 2000


def test_calls_that_were_taken_back_and_run_later_count_once(session, client):
    """Behind calls that hold their slots others are sent and taken back again and again."""
    with client.pool(tag="a", timeout=0.5) as pool:
        stuck = [pool.submit(time.sleep, 1000) for _ in range(2)]
        assert all(isinstance(f.exception(timeout=60), TimeoutError) for f in stuck)
        assert [pool.submit(abs, -1).result(timeout=60) for _ in range(3)] == [1, 1, 1]
    session.close()
    summary = json.loads((session.run_path / "summary.json").read_text())
    assert summary["task_names"]["abs"]["count"] == 3
    assert summary["tasks"]["succeeded"] == 3


def test_a_call_that_ran_for_too_long_is_a_failure_in_the_records(session, client, eventually):
    def spin():
        while True:
            pass

    with client.pool(tag="a", timeout=0.5) as pool:
        assert isinstance(pool.submit(spin).exception(timeout=60), TimeoutError)
    eventually(lambda: rows(session, "failures"))
    session.close()
    (failure,) = rows(session, "failures")
    assert failure["failure_class"] == "TimeoutError"
    assert "in spin" in failure["details"]["traceback"]
    assert json.loads((session.run_path / "summary.json").read_text())["tasks"] == {"failed": 1}


def test_rows_of_calls_on_request(session, client):
    with client.pool(tag="a", record_calls=True) as pool:
        list(pool.map(abs, range(300)))
        futures = [pool.submit(fail_at_three, i) for i in range(100)]
        [future.exception(timeout=60) for future in futures]
    session.close()
    final = [row for row in rows(session) if row["state"] in ("succeeded", "failed")]
    assert len(final) == 400
    assert len({row["task_id"] for row in final}) == 400
    assert [row["state"] for row in final].count("failed") == 1
    assert all(row["duration_s"] >= 0 and row["cpu_s"] is not None for row in final)
    summary = json.loads((session.run_path / "summary.json").read_text())
    assert summary["tasks"] == {"succeeded": 399, "failed": 1}


def test_output_of_calls_is_shown_on_request(client, capsys, eventually):
    shown = ""

    def everything():
        nonlocal shown
        shown += capsys.readouterr().out
        return shown.count("said") == 5 and shown.count("moremore") == 5

    with client.pool(tag="a", stream_output=True) as pool:
        assert list(pool.map(speak, range(5))) == list(range(5))
        eventually(everything)
    shown = ""
    with client.pool(tag="a") as pool:
        list(pool.map(speak, range(5)))
    assert "said" not in capsys.readouterr().out
    assert sys.stdout.writable()


@pytest.mark.parametrize("blocked", [False, True], ids=["python", "blocked"])
def test_cancelling_a_dask_future_frees_its_worker(client, blocked):
    def spin():
        while True:
            time.sleep(1000) if blocked else None

    futures = [client.submit(spin, tag="a") for _ in range(2)]
    time.sleep(1)
    for future in futures:
        future.cancel()
    assert client.submit(abs, -1, tag="a").result(timeout=60) == 1


def test_cancelling_leaves_what_another_client_waits_for(client):
    def slow():
        time.sleep(2)
        return os.getpid()

    with Client(client.scheduler.address, security=client.security) as other:
        theirs = other.submit(slow, key="shared", resources={"a": 1})
        ours = client.submit(slow, key="shared", tag="a")
        time.sleep(0.5)
        ours.cancel()
        assert theirs.result(timeout=60) > 0


def test_pools_that_follow_their_load_count_what_waits_in_clients(session):
    client = session.start()
    session.cluster.adapt("a", minimum=0, maximum=3)
    with client.pool(tag="a") as pool:
        futures = [pool.submit(nap, 1.0) for _ in range(40)]
        [future.result(timeout=120) for future in futures]
    wanted = [row["to"] for row in session.scaling_history if row["source"] == "adaptive"]
    assert max(wanted) == 3


@pytest.mark.parametrize("record_calls", [False, True])
def test_calls_that_an_interrupt_ends_are_counted_as_cancelled(
    session, client, eventually, record_calls
):
    pool = client.pool("a", record_calls=record_calls)
    assert pool.submit(nap, 0).result(timeout=60) is None
    calls = [pool.submit(nap, 600) for _ in range(5)]
    scheduler = session.cluster.scheduler
    eventually(lambda: sum(len(ws.executing) for ws in scheduler.workers.values()) == 2)
    time.sleep(1)  # the recorder looks twice a second
    session._close(KeyboardInterrupt())
    assert all(call.done() for call in calls)
    summary = build(session.run_path.parent, session.run_path.name)
    assert summary.tasks == {"succeeded": 1, "cancelled": 2}
