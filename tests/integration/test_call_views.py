"""The view of one call: running, queued, blocked, done, failed, of an executor, and one that is unknown."""

import threading
import time

import pytest
from distributed import Event

from scalable.model.overview import TaskView
from scalable.protocol.handlers import Handler
from scalable.scheduler import explaining

MANIFEST = """\
version: 1
project: {name: tests}
targets: {local: {provider: local, max_workers: 1, processes: true}}
components: {small: {cpus: 1, memory: 300M}}
"""
WORKERS = 1


class Secretive:
    """Runs code wherever it is unpickled or shown; only the call's worker may do so."""

    def __init__(self, number):
        self.number = number

    def __repr__(self):
        raise AssertionError("the code of an argument was run")


def fit(region, *, year):
    return f"{region}{year}"


def held(name, given=None):
    print("the call says hello", flush=True)
    Event(name).wait(timeout="120s")


def fail(x):
    raise ValueError(f"no {x}")


def view(client, key, position=None):
    return TaskView.from_dict(client._ask(Handler.CALL, key=key, position=position))


def when(client, key, holds, position=None):
    deadline = time.monotonic() + 60
    while not holds(found := view(client, key, position)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert holds(found), found
    return found


def test_a_call_that_is_done_has_times_worker_and_arguments(client):
    future = client.submit(fit, "north", year=2050, tag="small")
    future.result()
    found = when(client, future.key, lambda v: v.state == "done")
    assert (found.name, found.tag, found.tries) == ("fit", "small", 1)
    assert found.arguments == "('north', year=2050)"
    assert found.duration_s >= 0
    assert found.began <= found.ended
    assert found.result_bytes > 0
    assert found.worker
    assert found.notes == ()


def test_a_running_call_and_those_that_wait_for_it_have_arguments(client):
    first = client.submit(held, "one", Secretive(3), tag="small")
    behind = client.submit(fit, first, year=Secretive(4), tag="small")
    try:
        found = when(client, first.key, lambda v: v.state == "running" and v.output)
        assert found.arguments == "('one', Secretive(number=3))"
        assert "the call says hello" in found.output
        waiting = view(client, behind.key)
        assert waiting.state == "blocked"
        assert waiting.arguments == f"(result(of='{first.key}'), year=Secretive(number=4))"
        assert waiting.tries == 0
        assert "is blocked by task held-" in waiting.sentence
        deadline = time.monotonic() + 60
        running = []  # an overview may be of a moment ago, when a call of another test ran
        while running != [(first.key, "held")] and time.monotonic() < deadline:
            told = client._ask(Handler.OVERVIEW)["overview"]
            running = [(call["key"], call["name"]) for call in told["running"]]
            time.sleep(0.05)
        assert running == [(first.key, "held")]
    finally:
        Event("one", client=client).set()
    assert behind.exception() is not None  # its own code shows its arguments


def test_a_failed_call_has_its_traceback_and_is_still_known_after_it_was_forgotten(client):
    future = client.submit(fail, 7, tag="small", pure=False)
    key = future.key
    assert future.exception() is not None
    found = when(client, key, lambda v: v.failure_class == "ValueError")
    assert (found.state, found.arguments, found.message, found.tries) == (
        "failed",
        "(7)",
        "no 7",
        1,
    )
    assert "in fail" in found.frame
    assert "raise ValueError" in found.traceback
    del future
    later = when(client, key, lambda v: any("keeps only the times" in note for note in v.notes))
    assert (later.state, later.failure_class, later.arguments) == ("failed", "ValueError", "(7)")
    assert later.duration_s == found.duration_s


def test_calls_of_an_executor_are_known_one_by_one(client, eventually):
    with client.pool("small") as pool:
        broken = pool.submit(fail, 9)
        assert broken.exception() is not None
        running = pool.submit(held, "two", "x" * 10_000)
        told = {}

        def shown():
            # The bundle of the call that has failed may still be among those that run.
            told.update(client._ask(Handler.OVERVIEW, since=0))
            bundles = [c["key"] for c in told["overview"]["running"] if c["bundle"]]
            return next((v for key in bundles if (v := view(client, key)).arguments), None)

        found = eventually(shown)
        assert found.position == 0
        assert found.arguments.startswith("('two', 'xxxxx")
        assert len(found.arguments) < 500
        Event("two", client=client).set()
        running.result()
    (row,) = [row for row in told["events"]["failures"] if row["message"] == "no 9"]
    details = row["details"]
    one = view(client, details["task_id"], details["position"])
    assert (one.state, one.failure_class, one.arguments) == ("failed", "ValueError", "(9)")


def test_arguments_are_kept_out_where_they_are_not_to_be_recorded(client, monkeypatch):
    monkeypatch.setenv("SCALABLE_RECORD_ARGUMENTS", "0")
    future = client.submit(fit, "south", year=1, tag="small")
    future.result()
    found = view(client, future.key)
    assert found.arguments is None
    assert any("SCALABLE_RECORD_ARGUMENTS" in note for note in found.notes)


@pytest.mark.parametrize(
    "key", ["", "nothing", "(", "(" * 5000, "('a', 1)", "x" * 100_000, "([],)"]
)
def test_a_key_that_nobody_knows_is_told(client, key):
    found = view(client, key)
    assert found.state == "unknown"
    assert found.notes


def test_a_worker_that_does_not_answer_holds_nobody(client, tmp_path, eventually, monkeypatch):
    """The worker's event loop is held: the view comes without what the worker knows."""
    monkeypatch.setattr(explaining, "ASK_TIMEOUT_S", 0.3)
    address = next(iter(client.scheduler_info()["workers"]))
    first = client.submit(held, "three", tag="small")
    when(client, first.key, lambda v: v.output)

    begun, told = tmp_path / "begun", tmp_path / "told"

    async def blocked():
        begun.touch()
        while not told.exists():
            time.sleep(0.01)

    holder = threading.Thread(target=client.run, args=(blocked,), kwargs={"workers": [address]})
    holder.start()
    try:
        eventually(begun.exists)
        found = view(client, first.key)
    finally:
        told.touch()
        holder.join()
        Event("three", client=client).set()
    assert found.name == "held"
    assert found.arguments == "('three')"
    assert any("does not answer" in note for note in found.notes)
