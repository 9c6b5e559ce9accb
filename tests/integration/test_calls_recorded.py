"""What is known of tasks in bundles: profiles, records, output, and pools that follow their load."""

import json
import os
import sys
import threading
import time

import pytest
from distributed import Client

from scalable.runs.reading import read_run
from scalable.runs.summary import summarize
from scalable.scheduler import adaptation, recorder
from scalable.worker import bundles

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


WORKERS = 2


@pytest.fixture
def looks(monkeypatch):
    """Return a list that grows with each look of a recorder, which looks often."""
    found, look = [], recorder.Recorder._tick
    monkeypatch.setattr(recorder, "FLUSH_INTERVAL_S", 0.05)
    monkeypatch.setattr(recorder.Recorder, "_tick", lambda self: (look(self), found.append(1)))
    return found


@pytest.fixture
def own_session(running_session):
    """Run a session for one test, which may close it."""
    with running_session(MANIFEST, WORKERS) as session:
        yield session


pytestmark = pytest.mark.usefixtures("lost_soon")


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


def wait_for(gate):
    while not gate.exists():
        time.sleep(0.01)


def block():
    """Wait where no interrupt arrives."""
    threading.Event().wait()


def spin():
    while True:
        pass


def rows(session, stream="tasks"):
    lines = (session.run_path / f"{stream}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_profiles_of_calls_in_pools(client, gate):
    with client.pool(tag="a") as pool:
        future, failed = pool.submit(burn, 0.1), pool.submit(fail, 1)
        waiting = pool.submit(wait_for, gate)
        assert future.result(timeout=60) == b"\0"
        profile = future.profile()
        assert profile.keys() == ROW
        assert (profile["task_name"], profile["tag"], profile["state"]) == (
            "burn",
            "a",
            "succeeded",
        )
        assert profile["worker"].startswith("a-")
        assert profile["duration_s"] >= profile["cpu_s"] >= 0.1
        assert profile["peak_memory"] > 30_000_000
        assert profile["queued_s"] >= 0
        assert abs(profile["timestamp"] - time.time()) < 60
        failed.exception(timeout=60)
        assert failed.profile()["state"] == "failed"
        assert failed.profile()["duration_s"] >= 0
        with pytest.raises(ValueError, match="has not finished"):
            waiting.profile()
        waiting.cancel()
        assert waiting.profile()["state"] == "cancelled"


def test_profiles_of_dask_futures(client, gate):
    future, failed = client.submit(burn, 0.1, tag="a"), client.submit(fail, 1, tag="a")
    future.result()
    profile = client.profile(future)
    assert profile.keys() == ROW
    assert (profile["task_name"], profile["tag"], profile["state"]) == ("burn", "a", "succeeded")
    assert profile["duration_s"] >= 0.1
    assert profile["peak_memory"] > 30_000_000
    failed.exception()
    assert client.profile(failed)["state"] == "failed"
    client.restart()
    future = client.submit(burn, 0.05, tag="a")
    future.result()
    assert client.profile(future)["duration_s"] >= 0.05
    waiting = client.submit(wait_for, gate, tag="a")
    with pytest.raises(ValueError, match="has not finished"):
        client.profile(waiting)
    waiting.cancel()
    assert "children" in client.profile()  # Dask's own


# Records of one session ---------------------------------------------------------------------------


def in_bundles(x):
    return fail_at_three(x)


def on_request(x):
    return fail_at_three(x)


@pytest.fixture(scope="module")
def recorded(running_session, eventually):
    """Run calls of several kinds in one session, and return it when it has ended."""
    with running_session(MANIFEST, WORKERS) as session:
        client = session.client
        with client.pool(tag="a") as pool:
            futures = [pool.submit(in_bundles, i) for i in range(2000)]
            assert sum(future.exception(timeout=60) is not None for future in futures) == 1
        with client.pool(tag="a", record_calls=True) as pool:
            list(pool.map(abs, range(300)))
            futures = [pool.submit(on_request, i) for i in range(100)]
            [future.exception(timeout=60) for future in futures]
        with client.pool(tag="a", timeout=0.3) as pool:
            assert isinstance(pool.submit(spin).exception(timeout=60), TimeoutError)
        # Behind calls that hold their slots others are sent and taken back again and again.
        with client.pool(tag="a", timeout=0.3) as pool:
            client.run(set_grace)
            stuck = [pool.submit(block) for _ in range(2)]
            assert all(isinstance(f.exception(timeout=60), TimeoutError) for f in stuck)
            assert [pool.submit(round, 1.0).result(timeout=60) for _ in range(3)] == [1, 1, 1]
        eventually(lambda: len(rows(session, "failures")) == 5)
    return session


def set_grace():
    bundles.INTERRUPT_GRACE_S = 0.2


def rows_of(session, name, stream="tasks"):
    return [row for row in rows(session, stream) if row["task_name"] == name]


def failures_of(session, name):
    found = rows(session, "failures")
    return [row for row in found if row["details"]["traceback"].count(f"in {name}")]


def counts_of(session, name):
    summary = json.loads((session.run_path / "summary.json").read_text())
    return summary["task_names"][name]


def test_a_bundle_has_one_row_with_counts_and_quantiles(recorded):
    final = [row for row in rows_of(recorded, "in_bundles") if row.get("calls", {}).get("count")]
    assert len(final) < 500
    assert sum(row["calls"]["count"] for row in final) == 2000
    assert sum(row["calls"]["failed"] for row in final) == 1
    for row in final:
        quantiles = [row["calls"]["quantiles_s"][q] for q in ("0", "0.5", "0.95", "1")]
        assert quantiles == sorted(quantiles)
    (failure,) = failures_of(recorded, "in_bundles")
    assert (failure["failure_class"], failure["message"]) == ("LookupError", "no 3")
    counts = counts_of(recorded, "in_bundles")
    assert (counts["count"], counts["failed"]) == (2000, 1)


def test_calls_that_were_taken_back_and_run_later_count_once(recorded):
    assert counts_of(recorded, "round")["count"] == 3


def test_a_call_that_ran_for_too_long_is_a_failure_in_the_records(recorded):
    (failure,) = failures_of(recorded, "spin")
    assert failure["failure_class"] == "TimeoutError"
    counts = counts_of(recorded, "spin")
    assert (counts["count"], counts["failed"]) == (1, 1)


def test_rows_of_calls_on_request(recorded):
    ended = [row for row in rows(recorded, "tasks") if row["state"] in ("succeeded", "failed")]
    final = [row for row in ended if row["task_name"] in ("abs", "on_request")]
    assert len(final) == 400
    assert len({row["task_id"] for row in final}) == 400
    assert [row["state"] for row in final].count("failed") == 1
    assert all(row["duration_s"] >= 0 and row["cpu_s"] is not None for row in final)
    counts = [counts_of(recorded, name) for name in ("abs", "on_request")]
    assert [(each["count"], each["failed"]) for each in counts] == [(300, 0), (100, 1)]


def test_all_calls_of_a_session_are_counted(recorded):
    summary = json.loads((recorded.run_path / "summary.json").read_text())
    assert summary["tasks"] == {"succeeded": 1999 + 300 + 99 + 3, "failed": 5}


# Cancelled calls, and output ----------------------------------------------------------------------


def test_output_of_calls_is_shown_on_request(client, capsys, eventually):
    shown = ""

    def everything():
        nonlocal shown
        shown += capsys.readouterr().out
        return shown.count("said") == 5 and shown.count("moremore") == 5

    with client.pool(tag="a", stream_output=True) as pool:
        assert list(pool.map(speak, range(5))) == list(range(5))
        eventually(everything)
    assert sys.stdout.writable()


@pytest.mark.parametrize("function", [spin, block])
def test_cancelling_a_dask_future_frees_its_worker(client, function, eventually):
    # A worker of an earlier test may be leaving.
    client.run(set_grace, on_error="ignore")

    def running(dask_worker):
        return [task.key for task in dask_worker.state.executing]

    futures = [client.submit(function, tag="a") for _ in range(2)]
    eventually(lambda: sum(map(len, client.run(running, on_error="ignore").values())) == 2)
    for future in futures:
        future.cancel()
    assert client.submit(abs, -1, tag="a").result(timeout=60) == 1
    eventually(lambda: client.worker_count("a") == 2)


def begin_late():
    """Have each thread of this worker begin its task later than the worker counts it as running."""
    from distributed import worker

    run = worker._run_task

    def late(*args):
        time.sleep(0.2)
        return run(*args)

    worker._run_task = late


def test_cancelling_a_task_that_no_thread_has_begun_frees_its_worker(own_session, eventually):
    def running(dask_worker):
        return len(dask_worker.state.executing)

    client = own_session.client
    client.run(begin_late)
    futures = [client.submit(spin, tag="a") for _ in range(2)]
    eventually(lambda: sum(client.run(running).values()) == 2)
    for future in futures:
        future.cancel()
    assert client.submit(abs, -1, tag="a").result(timeout=60) == 1
    eventually(lambda: sum(client.run(running).values()) == 0)


def test_cancelling_leaves_what_another_client_waits_for(client, gate, eventually):
    def late():
        wait_for(gate)
        return os.getpid()

    def wanted(dask_scheduler):
        task = dask_scheduler.tasks.get("shared")
        return len(task.who_wants) if task is not None else 0

    with Client(client.scheduler.address, security=client.security) as other:
        theirs = other.submit(late, key="shared", resources={"a": 1})
        ours = client.submit(late, key="shared", tag="a")
        eventually(lambda: client.run_on_scheduler(wanted) == 2)
        ours.cancel()
        # The scheduler has heard of it before this call.
        assert client.submit(abs, -1, tag="a").result(timeout=60) == 1
        gate.touch()
        assert theirs.result(timeout=60) > 0


def test_pools_that_follow_their_load_count_what_waits_in_clients(
    session, gate, eventually, monkeypatch
):
    monkeypatch.setattr(adaptation, "INTERVAL_S", 0.1)
    session.cluster.adapt("a", minimum=0, maximum=3)
    with session.client.pool(tag="a") as pool:
        futures = [pool.submit(wait_for, gate) for _ in range(40)]

        def largest():
            history = session.scaling_history
            return max((row["to"] for row in history if row["source"] == "adaptive"), default=0)

        eventually(lambda: largest() == 3)
        gate.touch()
        [future.result(timeout=60) for future in futures]
    assert largest() == 3
    session.cluster.scale("a", WORKERS)
    eventually(lambda: session.client.worker_count("a") == WORKERS)


@pytest.mark.parametrize("record_calls", [False, True])
def test_calls_that_an_interrupt_ends_are_counted_as_cancelled(
    looks, own_session, tmp_path, eventually, record_calls
):
    session = own_session
    pool = session.client.pool("a", record_calls=record_calls)
    # Not by the executor: after a short call, one bundle may have several of the next.
    assert session.client.submit(abs, -1, tag="a").result(timeout=60) == 1
    calls = [pool.submit(wait_for, tmp_path / "never") for _ in range(5)]
    scheduler = session.cluster.scheduler
    eventually(lambda: sum(len(ws.executing) for ws in scheduler.workers.values()) == 2)
    seen = len(looks)
    eventually(lambda: len(looks) >= seen + 2, "the recorder has looked at what runs")
    session._close(KeyboardInterrupt())
    assert all(call.done() for call in calls)
    summary = summarize(read_run(session.run_path))
    assert summary.tasks == {"succeeded": 1, "cancelled": 2}


@pytest.mark.parametrize("record_calls", [False, True])
def test_calls_that_do_not_stop_are_counted_as_those_that_do(
    looks, own_session, eventually, record_calls
):
    client = own_session.client
    late = client.executor(tag="a", timeout=0.3, record_calls=record_calls)
    with pytest.raises(TimeoutError):
        late.submit(block).result(timeout=60)
    stopped = client.executor(tag="a", record_calls=record_calls)
    call = stopped.submit(block)
    while not call.running():
        time.sleep(0.01)
    seen = len(looks)
    eventually(lambda: len(looks) >= seen + 20, "the recorder has looked at what runs")
    assert call.cancel()
    assert client.submit(abs, -1, tag="a").result(timeout=60) == 1

    def live():
        counts = own_session.overview().counts
        return counts.done, counts.failed, counts.cancelled

    eventually(lambda: live() == (1, 1, 1), timeout=60)
    own_session.close()
    summary = summarize(read_run(own_session.run_path))
    assert summary.tasks == {"succeeded": 1, "failed": 1, "cancelled": 1}
    assert [(each.failure_class, each.count) for each in summary.failures] == [("TimeoutError", 1)]
