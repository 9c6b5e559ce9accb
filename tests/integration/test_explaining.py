"""Each state in which a call can wait is built on a real scheduler, and its sentence is read."""

import asyncio
import re
import threading
import time
from contextlib import asynccontextmanager

import pytest
from distributed import Worker, get_client
from distributed.core import Status

from scalable import ScalableClient, ScalableSession
from scalable.client.futures import CallFuture
from scalable.clusters.control import beyond_most
from scalable.errors import ClusterError
from scalable.model import PoolStatus
from scalable.protocol.handlers import Handler, request
from scalable.records import find
from scalable.scaling.pool_policy import PoolDecision
from scalable.scheduler.controller import Controller
from scalable.scheduler.managers import LEASE_S
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.scheduler.task_log import TaskLog
from scalable.views.explanation import short_key
from scalable.worker.pool_worker import PoolWorker

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

POOL = {"cpus": 1, "memory": 2**30, "slots": 1}
ENDS = {}


def nap(name, seconds=60):
    ENDS.setdefault(name, threading.Event()).wait(seconds)
    return name


def fail(x):
    raise ValueError(f"no {x}")


def same(x, *_):
    return x


class Bed:
    """A scheduler with one fake manager, and a client."""

    def __init__(self, scheduler, controller, client):
        self.scheduler, self.controller, self.client = scheduler, controller, client

    def attach(self, manager="m", **pools):
        known = {tag: {**POOL, "slots": slots} for tag, slots in (pools or {"a": 1}).items()}
        attached = {"manager": manager, "nonce": "x", "target": "t", "pools": known}
        assert self.controller.attach(**attached)["accepted"]

    def report(self, tag="a", manager="m", **counts):
        pool = PoolStatus(**counts).to_dict()
        answer = self.controller.heartbeat(manager, "x", {tag: pool}, [])
        assert answer

    def worker(self, name="a-1", cls=Worker, **options):
        given = {"nthreads": 1, "dashboard": False, "resources": {"a": 1}} | options
        return cls(self.scheduler.address, name=name, **given)

    async def until(self, key, *states):
        while key not in self.scheduler.tasks or self.scheduler.tasks[key].state not in states:
            await asyncio.sleep(0.01)

    async def says(self, about, reason, words, advice=""):
        """Ask until the sentence is the one expected; workers report what runs by heartbeats."""
        deadline = time.monotonic() + 30
        words = words.replace("KEY", re.escape(short_key(getattr(about, "key", str(about)))))
        while True:
            found = await self.client.explain(about)
            if re.fullmatch(words, found.sentence) or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        assert re.fullmatch(words, found.sentence), found.sentence
        assert found.reason == reason, found
        assert re.fullmatch(advice, found.advice), found.advice
        return found


@pytest.fixture(autouse=True)
def _calls_that_cannot_run_stay(monkeypatch):
    """Calls that no worker can ever run fail after two seconds; they are to be explained first."""
    monkeypatch.setattr("scalable.scheduler.explaining.WAIT_BEFORE_WORD_S", 1e9)


@asynccontextmanager
async def bed(**options):
    async with PoolScheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        controller = Controller(scheduler, **options)
        scheduler.add_plugin(controller)
        async with ScalableClient(scheduler.address, asynchronous=True) as client:
            yield Bed(scheduler, controller, client)


def on_bed(test):
    """Run a test on a bed of its own."""

    def run():
        async def inside():
            async with bed() as made:
                await test(made)

        try:
            asyncio.run(asyncio.wait_for(inside(), 120))
        finally:
            for event in ENDS.values():
                event.set()
            ENDS.clear()

    run.__name__ = test.__name__
    return run


# Calls for which there is no worker -----------------------------------------------------------


@on_bed
async def test_a_pool_that_does_not_exist(on):
    on.attach()
    future = on.client.submit(same, 1, tag="x")
    await on.says(
        future,
        "no-pool",
        "task KEY is queued and cannot run: no pool 'x'; known tags: 'a'",
        "give a known tag",
    )


@on_bed
async def test_no_manager_is_attached(on):
    future = on.client.submit(same, 1, tag="a")
    words = "task KEY is queued and cannot run: no pool 'a'; known tags: none; no manager is attached to start"
    await on.says(future, "no-manager", f"{words} workers", "attach a manager with .*")


def test_managers_that_are_expected_have_not_attached_yet():
    async def run():
        async with bed(expected=1) as on:
            future = on.client.submit(same, 1, tag="a")
            words = "task KEY is queued for pool 'a': its managers are not attached yet"
            await on.says(future, "manager-starts", words)

    asyncio.run(asyncio.wait_for(run(), 120))


@on_bed
async def test_an_empty_pool_that_nothing_scales(on):
    on.attach()
    future = on.client.submit(same, 1, tag="a")
    way = r"start some with scale\('a', 1\)"
    await on.says(future, "empty", "task KEY is queued for pool 'a': it has no workers", way)
    on.scheduler.cluster_name = "c"
    way = "start some with `scalable scale c a=1`"
    await on.says(future, "empty", "task KEY is queued for pool 'a': it has no workers", way)


class Miser:
    """A policy that wants no worker."""

    def decide(self, view, model):
        return PoolDecision(0, "no task is worth a worker")


@on_bed
async def test_an_empty_pool_that_is_adaptive(on):
    on.attach()
    future = on.client.submit(same, 1, tag="a")
    on.controller.adapt("a", policy=Miser())
    words = "task KEY is queued for pool 'a': it is adaptive, and its policy requests 0 workers: no task "
    found = await on.says(future, "adaptive", f"{words}is worth a worker")
    assert found.details["state"] == "no-worker"
    on.controller.adapt("a", maximum=0, policy=Miser())
    words = "task KEY is queued for pool 'a': its policy cannot start workers: its maximum is 0"
    await on.says(future, "empty", words, "start some.*")


@on_bed
async def test_a_manager_that_fails(on):
    on.attach()
    on.controller.scale({"a": 2})
    on.report(wanted=2, failed=2, reason="sbatch: invalid account 'x'")
    future = on.client.submit(same, 1, tag="a")
    words = "task KEY is queued for pool 'a': sbatch: invalid account 'x'"
    way = r"remove the cause, then scale\('a', 2\) starts workers again"
    await on.says(future, "manager-fails", words, way)


@on_bed
async def test_a_manager_that_is_lost(on):
    on.attach()
    on.controller.scale({"a": 2})
    future = on.client.submit(same, 1, tag="a")
    next(iter(on.controller.managers)).last_seen -= LEASE_S + 5
    words = "task KEY is queued for pool 'a': manager 'm' no longer reports, for 3[0-9].[0-9] s"
    await on.says(future, "manager-lost", words)


@on_bed
async def test_a_manager_that_leaves(on):
    on.attach()
    on.controller.scale({"a": 2})
    on.controller.leave("m", "x", gone=False)
    future = on.client.submit(same, 1, tag="a")
    words = "task KEY is queued for pool 'a': manager 'm' is leaving and starts no more workers"
    await on.says(future, "no-manager", words, "attach another with .*")


@on_bed
async def test_the_reason_of_the_place(on):
    on.attach()
    on.controller.scale({"a": 2})
    on.report(wanted=2, waiting="job 7 waits: the partition is down")
    future = on.client.submit(same, 1, tag="a")
    words = "none of its 2 workers has connected yet (job 7 waits: the partition is down)"
    await on.says(future, "place", f"task KEY is queued for pool 'a': {re.escape(words)}")


@on_bed
async def test_workers_that_are_starting(on):
    on.attach()
    on.controller.scale({"a": 2})
    on.report(wanted=2, launching=2)
    on.controller._tick()
    future = on.client.submit(same, 1, tag="a")
    words = r"2 of its workers are starting, for [0-9.]+ m?s now \(usual: 1 m 00 s\)"
    await on.says(future, "launching", f"task KEY is queued for pool 'a': {words}")


@on_bed
async def test_the_budget(on):
    on.attach()
    on.controller.scale({"a": 2})
    held, way = "3.00 of 3 USD are spent: no pool grows", "raise the budget"
    on.controller.demand.limit(on.controller.demand.ceiling, held, way)
    future = on.client.submit(same, 1, tag="a")
    await on.says(future, "budget", f"task KEY is queued for pool 'a': {held}", way)


@on_bed
async def test_a_cluster_that_ends(on):
    on.attach()
    future = on.client.submit(same, 1, tag="a")
    on.controller.ending = "it was idle"
    words = "task KEY is queued for pool 'a': the cluster is stopping: it was idle"
    await on.says(future, "ending", words, "start a cluster, .*")


@on_bed
async def test_workers_that_leave_and_a_walltime_that_is_too_short(on):
    on.attach()
    async with on.worker(resources={"a": 1}) as worker:
        on.controller.scale({"a": 1})
        running = on.client.submit(nap, "leaving", tag="a")
        await on.until(running.key, "processing")
        on.controller.removals.drain({"a-1": "asked for by ada"})
        future = on.client.submit(same, 1, tag="a")
        words = "task KEY is queued for pool 'a': its only worker is leaving: asked for by ada"
        await on.says(future, "leaving", words)
        on.controller.overviews._made_at = 0.0
        leaving = on.controller.overviews.present().pools["a"].leaving
        assert leaving == {"asked for by ada": 1}
        record = on.controller.removals.records.at(worker.address)
        record.drain.reason = "its walltime ends in 3 min"
        words = (
            "task KEY is queued for pool 'a': the walltime that its only worker has left is too "
        )
        words += r"short for another task \(its walltime ends in 3 min\)"
        await on.says(future, "walltime", words, "raise the walltime.*")
        ENDS["leaving"].set()


@on_bed
async def test_workers_that_are_paused(on):
    on.attach()
    on.controller.scale({"a": 1})
    async with on.worker(memory_limit=0) as worker:
        worker.status = Status.paused
        while on.scheduler.running:
            await asyncio.sleep(0.01)
        future = on.client.submit(same, 1, tag="a")
        words = r"all of its workers \(a-1\) are paused: their memory is nearly full"
        await on.says(future, "paused", f"task KEY is queued for pool 'a': {words}", "give .*")


# Calls that ask for what nobody has -----------------------------------------------------------


@on_bed
async def test_a_resource_that_nobody_offers(on):
    on.attach()
    async with on.worker():
        future = on.client.submit(same, 1, resources={"GPU": 1})
        words = "task KEY is queued for resource 'GPU', which no worker offers"
        await on.says(future, "resources", words, "start a worker with resources={'GPU': 1}")


@on_bed
async def test_slots_of_two_pools_together(on):
    on.attach(a=1, b=1)
    future = on.client.submit(same, 1, resources={"a": 1, "b": 1})
    words = "it needs slots of pool 'a' and pool 'b', which no worker offers together"
    await on.says(
        future, "resources", f"task KEY is queued and cannot run: {words}", "give one tag .*"
    )


@on_bed
async def test_more_slots_than_a_worker_has(on):
    on.attach(a=2)
    future = on.client.submit(same, 1, tag="a", n=3)
    words = (
        "task KEY is queued and cannot run: it needs more slots than a worker of pool 'a' has: 2"
    )
    await on.says(future, "slots", words, "take fewer slots .*")


@on_bed
async def test_a_worker_that_has_left_and_one_that_lacks_what_the_call_needs(on):
    on.attach()
    gone = on.client.submit(same, 1, workers=["tcp://127.0.0.1:1"])
    words = "task KEY is queued for worker tcp://127.0.0.1:1, which has left"
    await on.says(gone, "restriction", words, "submit the task again without workers=")
    async with on.worker(resources={"a": 1}) as worker:
        options = {"workers": [worker.address], "resources": {"a": 2}}
        unable = on.client.submit(same, 2, **options)
        words = f"it is restricted to {worker.address}, without enough of what it needs: .*"
        await on.says(
            unable, "restriction", f"task KEY is queued and cannot run: {words}", "drop .*"
        )


# Calls that wait on a worker, or for other calls ----------------------------------------------


@on_bed
async def test_a_full_pool_and_the_priority(on):
    on.attach()
    on.controller.scale({"a": 1})
    async with on.worker():
        await on.client.submit(same, "measured", tag="a", key="nap-0")
        running = on.client.submit(nap, "full", tag="a", key="nap-1")
        await on.says(
            running,
            "running",
            "task KEY is running on worker a-1 for [0-9.]+ m?s(; it is expected to finish in [0-9.]+ m?s)?",
        )
        second = on.client.submit(same, 2, tag="a", priority=5)
        full = (
            "task KEY is queued on worker a-1 for a slot of pool 'a': its slot is taken, by tasks "
        )
        full += "of 'nap', the oldest for [0-9.]+ m?s on worker a-1"
        full += "(; one is expected to be free in [0-9.]+ m?s)?"  # not if it runs far too long
        way = r"wait, or add workers: scale\('a', 2\)"
        await on.says(second, "full", full, way)
        third = on.client.submit(same, 3, tag="a")
        before = "; after 1 task with a higher priority or submitted earlier, first "
        await on.says(third, "priority", full + before + short_key(second.key), way)
        found = await on.client.explain("a")
        assert found.pools[0].reason == "full"
        of_shell = await request(on.client.scheduler, Handler.EXPLAIN, tag="a", cluster="c")
        assert of_shell["pools"][0]["advice"] == "wait, or add workers: `scalable scale c a=2`"
        assert of_shell["tasks"][0]["advice"] == of_shell["pools"][0]["advice"]
        on.scheduler.max_workers = 1
        way = "wait; max_workers 1 of the target allows no more workers: raise it in the manifest"
        await on.says(second, "full", full, way)
        assert [c.details["count"] for c in found.tasks] == [2]
        assert found.tasks[0].sentence.startswith(
            "2 tasks of 'same' are queued for a slot of pool 'a'"
        )
        ENDS["full"].set()


@on_bed
async def test_calls_whose_results_are_needed(on):
    on.attach()
    on.controller.scale({"a": 1})
    async with on.worker():
        one = on.client.submit(nap, "needed", tag="a")
        while (await on.client.explain(one)).reason != "running":
            await asyncio.sleep(0.05)
        two = on.client.submit(same, one, tag="a")
        words = rf"task KEY is blocked by task {short_key(one.key)} \(running on worker a-1\)"
        await on.says(two, "dependencies", words)
        three = on.client.submit(same, 1, one, two, tag="a")
        words = "task KEY is blocked by 2 tasks: 1 blocked, 1 running"
        words += rf"; one is {short_key(two.key)} \(blocked\)"
        await on.says(three, "dependencies", words, f"explain task {short_key(two.key)}")
        ENDS["needed"].set()


def ask_and_wait(pool):
    return get_client().submit(nap, "child", tag=pool, pure=False).result()


@on_bed
async def test_a_call_that_waits_for_its_children_and_lends_its_slot(on):
    on.attach()
    on.controller.scale({"a": 1})
    async with on.worker(cls=PoolWorker):
        parent = on.client.submit(ask_and_wait, "a", tag="a")
        words = (
            "task KEY is running on worker a-1 for [0-9.]+ m?s; it has submitted 1 unfinished task"
        )
        words += ", and its slot is lent to other tasks"
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = await on.client.explain(parent)
            if found.details["lends"]:
                break
            await asyncio.sleep(0.05)
        await on.says(parent, "nested", words, "explain task nap-.*")
        ENDS.setdefault("child", threading.Event()).set()
        assert await parent == "child"


@on_bed
async def test_a_call_that_holds_the_slot_that_its_child_needs(on):
    on.attach()
    on.controller.scale({"a": 1})
    async with on.worker(resources={"a": 1}):  # Dask's own worker lends no slots
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("distributed.worker.secede", lambda *_, **__: None)
            patched.setattr("distributed.client.secede", lambda *_, **__: None, raising=False)
            parent = on.client.submit(ask_and_wait, "a", tag="a")
            await on.until(parent.key, "processing")
            while not (children := TaskLog.of(on.scheduler).call(parent.key).children):
                await asyncio.sleep(0.05)
            child = next(iter(children))
            words = f"task {short_key(child)} is queued for a slot of pool 'a' that task "
            words += f"{short_key(parent.key)} "
            words += "holds, which has submitted it and waits for it: neither can continue"
            await on.says(child, "held-slot", words, "add a worker to pool 'a', or cancel .*")
            async with on.worker(name="a-2"):
                ENDS.setdefault("child", threading.Event()).set()
                assert await parent == "child"


# Calls that do not wait -----------------------------------------------------------------------


@on_bed
async def test_calls_that_have_ended_and_calls_that_nobody_knows(on):
    on.attach()
    on.controller.scale({"a": 1})
    async with on.worker():
        done = on.client.submit(same, 1, tag="a")
        await done
        words = "task KEY has finished [0-9.]+ m?s ago on worker a-1, and its result is available"
        await on.says(done, "done", words)
        failed = on.client.submit(fail, 7, tag="a")
        await on.until(failed.key, "erred")
        frame = r"\(.*test_explaining.py:[0-9]+ in fail\)"
        words = f"has failed on worker a-1: ValueError: no 7 {frame}"
        found = await on.says(failed, "failed", f"task KEY {words}")
        assert found.state == "failed"
        after = on.client.submit(same, failed, tag="a")
        await on.until(after.key, "erred")
        words = f"task KEY has failed because it needs task {short_key(failed.key)}, which {words}"
        await on.says(after, "failed", words, f"explain task {short_key(failed.key)}")
        await done.cancel()
        await on.says(done, "cancelled", "task KEY was cancelled", "submit the task again")
        failed.release()
        after.release()
        while failed.key in on.scheduler.tasks:
            await asyncio.sleep(0.01)
        words = f"task {short_key(failed.key)} has failed on worker a-1: ValueError: no 7 {frame}"
        for name in ("fail", failed.key, failed.key[:-3], short_key(failed.key)):
            await on.says(name, "failed", words, ".*scalable report --failed.*")
        words = "no task fial: .*"
        await on.says("fial", "unknown", words, "did you mean 'fail'. .*scalable report.*")
        words = "no task zz: it was never submitted here, it was cancelled, or .*"
        found = await on.says("zz", "unknown", words, ".*scalable report --failed.*")
        assert found.state == "unknown"


@on_bed
async def test_a_question_that_overtakes_the_submission_waits_for_it(on):
    held, stream = [], on.client.scheduler_comm
    stream.send, send = lambda *messages: held.append(messages), stream.send
    future = on.client.submit(same, 1, tag="a")
    asked = asyncio.ensure_future(on.client.explain(future))
    while not held:
        await asyncio.sleep(0.01)
    await on.client.scheduler.identity()  # the first question is there, too
    stream.send = send
    for messages in held:
        send(*messages)
    assert (await asked).reason == "no-manager"


@on_bed
async def test_names_of_tasks_and_beginnings_of_keys_stand_for_calls(on):
    on.attach()
    future = on.client.submit(same, 1, tag="a")
    await on.until(future.key, "no-worker")
    assert (await on.client.explain("same")).about == future.key
    assert (await on.client.explain(future.key[:9])).about == future.key
    everything = await on.client.explain()
    assert [pool.about for pool in everything.pools] == ["a"]
    assert "has no worker that takes tasks" in everything.pools[0].sentence
    assert [call.about for call in everything.tasks] == [future.key]


# Executors ------------------------------------------------------------------------------------


def test_calls_of_an_executor_wait_in_the_client_run_and_end():
    with ScalableSession.local({"a": 1, "b": 0}) as client:
        pool = client.pool("a")
        futures = [pool.submit(nap, "executor") for _ in range(30)]
        while client.explain(futures[0]).reason != "running":
            time.sleep(0.05)
        last = client.explain(futures[-1])
        assert last.reason == "backlog"
        assert re.match(
            r"task nap is queued in its client until a slot is free, after \d+ tasks",
            last.sentence,
        )
        deadline = time.monotonic() + 30
        while (all_of_a := client.explain("a")).pools[0].details["queued"] != 29:
            assert time.monotonic() < deadline, all_of_a
            time.sleep(0.05)
        assert sum(tasks.details["count"] for tasks in all_of_a.tasks) == 29
        words = r"\d+ tasks of 'nap' are queued in their client until a slot is free"
        assert re.fullmatch(words, all_of_a.tasks[-1].sentence)
        assert client.explain("nap").state in ("running", "queued")
        needing = pool.submit(same, futures[0])
        found = client.explain(needing)
        assert found.reason == "dependencies"
        assert found.sentence == "task same is blocked by task nap (queued)"
        empty = client.pool("b").submit(same, 1)
        words = "for pool 'b': it has no workers"
        deadline = time.monotonic() + 30
        while words not in (found := client.explain(empty)).sentence:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        ENDS["executor"].set()
        assert futures[-1].result(60) == "executor"
        assert client.explain(futures[-1]).reason == "done"
        while (found := client.explain("nap")).state != "unknown":  # its bundles may be there still
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        assert "no task of nap is unfinished or has failed" in found.sentence
        failed = pool.submit(fail, 3)
        assert isinstance(failed.exception(60), ValueError)
        assert "ValueError: no 3 (" in client.explain(failed).sentence
        assert isinstance(empty, CallFuture)
        assert empty.cancel()
        assert client.explain(empty).reason == "cancelled"


def look_up(name):
    return {}[name]


class MissingFieldError(KeyError):
    """A KeyError of a workflow's own."""


def look_up_field(name):
    raise MissingFieldError(name)


@on_bed
async def test_the_message_of_a_failure_is_as_python_shows_it(on):
    on.attach()
    on.controller.scale({"a": 1})
    async with on.worker(cls=PoolWorker):
        for function, name in ((look_up, "KeyError"), (look_up_field, "MissingFieldError")):
            failed = on.client.submit(function, "lat", tag="a")
            await on.until(failed.key, "erred")
            words = f"task KEY has failed on worker a-1: {name}: 'lat' .*"
            await on.says(failed, "failed", words)
        failed = on.client.submit(open, "no such file", tag="a")
        await on.until(failed.key, "erred")
        words = "FileNotFoundError: .Errno 2. No such file or directory: 'no such file'.*"
        await on.says(failed, "failed", f"task KEY has failed on worker a-1: {words}")


MANIFEST = """\
version: 1
project: {name: bounded}
components:
  a: {cpus: 1, memory: 200M}
targets:
  local: {provider: local, max_workers: 1, processes: false}
"""


def test_the_limit_of_a_session_is_known_to_its_advice_and_to_other_shells(tmp_path):
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    session = ScalableSession.from_yaml(str(tmp_path / "scalable.yaml"), "local")
    with session.start() as client:
        name = client.cluster.name
        assert find(name).record().max_workers == 1
        assert beyond_most(name, {"a": 2}) == (2, "max_workers 1")
        naps = [client.submit(nap, "limit", tag="a", pure=False) for _ in range(2)]
        deadline = time.monotonic() + 30
        while "max_workers 1" not in (found := str(client.explain("a"))):
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        ENDS.setdefault("limit", threading.Event()).set()
        assert client.gather(naps) == ["limit", "limit"]


def test_a_call_after_the_end_of_a_session_names_the_end_and_the_way_out():
    with ScalableSession.local({"a": 1}) as client:
        future = client.submit(same, 1, tag="a")
        future.result(timeout=60)
    for make in (
        lambda: client.submit(same, 1, tag="a"),
        lambda: client.submit(same, 1),
        lambda: client.map(same, [1], tag="a"),
        lambda: client.get({"x": (same, 1)}, "x"),
        lambda: client.gather([future]),
        lambda: client.gather({"x": [future]}),
        lambda: client.scatter([1]),
        lambda: client.run(same, 1),
        lambda: client.cancel([future]),
        future.result,
        future.exception,
    ):
        with pytest.raises(ClusterError, match="this client is closed") as caught:
            make()
        assert "`with` block" in caught.value.hint
