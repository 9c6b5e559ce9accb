"""The order of waiting calls, on a scheduler whose tasks are moved by hand."""

import asyncio
from types import SimpleNamespace

import pytest
from distributed.collections import HeapSet

from scalable.protocol.measured import USAGE, addition
from scalable.protocol.operations import PRIORITIES
from scalable.scaling.precedence import Precedence
from scalable.scheduler.call_order import CallOrder
from scalable.scheduler.ledger import Ledger

GIB = 2**30


class Plain(SimpleNamespace):
    """As the scheduler's objects: only itself is equal to it."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Loop:
    """Keeps what is to be called later."""

    def __init__(self):
        self.later = []

    def call_later(self, wait_s, act):
        self.later.append((wait_s, act))
        return len(self.later)

    def remove_timeout(self, timer):
        """Forget nothing."""


class Sent:
    """The connection to a worker."""

    def __init__(self):
        self.messages = []

    def send(self, message):
        self.messages.append(message)


class Calls:
    """Graphs of calls on a scheduler."""

    def __init__(self):
        self.scheduler = SimpleNamespace(
            tasks={},
            workers={},
            stream_comms={},
            loop=Loop(),
            queued=HeapSet(key=lambda task: task.priority),
        )
        self.order = CallOrder(self.scheduler)
        self.ledger = Ledger(self.scheduler)
        self.ledger.listen(self.order)
        self.generation = 0

    def graph(self, calls, *, user=0, generation=None):
        """Submit calls: name of the call -> names of the calls it waits for; "f-1" is an f."""
        self.generation += 1
        tasks = self.scheduler.tasks
        for place, (key, needs) in enumerate(calls.items()):
            if key not in tasks:
                at = self.generation if generation is None else generation
                tasks[key] = Plain(
                    key=key, prefix=SimpleNamespace(name=key.partition("-")[0]), annotations={},
                    resource_restrictions={"a": 1}, dependencies={tasks[other] for other in needs},
                    waiting_on={tasks[o] for o in needs if tasks[o].state != "memory"}, nbytes=-1,
                    state="released", processing_on=None, priority=(-user, at, place),
                    dependents=set(),
                )  # fmt: skip
                for other in needs:
                    tasks[other].dependents.add(tasks[key])
        # Dask reports the tasks of a graph in any order.
        self.ledger.update_graph(self.scheduler, tasks=list(calls)[::-1])
        for key in calls:
            self.move(key, "waiting")

    def move(self, key, state, **details):
        task = self.scheduler.tasks[key]
        start, task.state = task.state, state
        self.ledger.transition(key, start, state, stimulus_id="x", **details)

    def worker(self, name, *, ours=True, stored=0):
        worker = Plain(
            address=name, executing={}, long_running=set(), nbytes=stored, memory_limit=GIB,
            extra={PRIORITIES: True} if ours else {}, processing={},
        )  # fmt: skip
        self.scheduler.workers[name] = worker
        self.scheduler.stream_comms[name] = Sent()
        return worker

    def place(self, key, worker, *, begun=False):
        self.scheduler.tasks[key].processing_on = worker
        self.move(key, "processing")
        if begun:
            worker.executing[self.scheduler.tasks[key]] = 1.0

    def run(self, key, seconds):
        """Have a call end that ran for so long."""
        self.move(key, "processing")
        parts = [{"action": "compute", "start": 100.0, "stop": 100.0 + seconds}]
        usage = addition(USAGE, {"cpu_s": 0, "peak_memory": None})
        self.move(key, "memory", startstops=[*parts, usage])
        for task in self.scheduler.tasks.values():
            task.waiting_on.discard(self.scheduler.tasks[key])

    def change(self):
        """Have the order changed that is due."""
        assert self.is_due
        self.order._timer = None
        asyncio.run(self.order._change())

    @property
    def is_due(self):
        return self.order._timer is not None

    @property
    def sorted(self):
        waiting = (t for t in self.scheduler.tasks.values() if t.state != "memory")
        return [task.key for task in sorted(waiting, key=lambda task: task.priority)]

    def epoch(self, key):
        return Precedence(*self.scheduler.tasks[key].priority).epoch

    def told(self, worker):
        return [key for m in self.scheduler.stream_comms[worker].messages
                for key, _ in m["priorities"]]  # fmt: skip


@pytest.fixture
def calls():
    return Calls()


def chain(name, length):
    return {f"{name}-{i}": [f"{name}-{i - 1}"] if i else [] for i in range(length)}


def known(calls, **lengths):
    """Have one call of each kind end."""
    for name, seconds in lengths.items():
        calls.graph({f"{name}-first": []})
        calls.run(f"{name}-first", seconds)
    calls.order._timer = None


def test_calls_with_the_longest_remaining_path_come_first(calls):
    known(calls, leaf=1.0, link=1.0)
    calls.graph({"leaf-1": [], "leaf-2": [], **chain("link", 3)})
    assert calls.sorted == ["link-0", "link-1", "leaf-1", "leaf-2", "link-2"]


def test_long_calls_come_first_within_a_level(calls):
    known(calls, short=1.0, long=30.0)
    calls.graph({"short-1": [], "long-1": [], "short-2": [], "long-2": []})
    assert calls.sorted == ["long-1", "long-2", "short-1", "short-2"]


def test_the_users_priority_wins(calls):
    known(calls, leaf=1.0, link=1.0)
    calls.graph(chain("link", 3))
    calls.graph({"leaf-1": []}, user=1)
    assert calls.sorted[0] == "leaf-1"


def test_a_later_unrelated_graph_comes_later(calls):
    known(calls, leaf=1.0, link=50.0)
    calls.graph({"leaf-1": [], "leaf-2": []})
    calls.graph(chain("link", 3))
    assert calls.sorted[:2] == ["leaf-1", "leaf-2"]


def test_single_calls_keep_the_order_of_submission(calls):
    known(calls, leaf=1.0)
    for i in range(3):
        calls.graph({f"leaf-{i}": []}, generation=9)  # Dask counts graphs within 0.1 s as one
    assert calls.sorted == ["leaf-0", "leaf-1", "leaf-2"]


def test_a_call_submitted_with_a_future_lengthens_the_paths_before_it(calls):
    known(calls, leaf=1.0, link=1.0)
    calls.graph({"leaf-1": [], "leaf-2": [], "link-0": []})
    assert calls.sorted == ["leaf-1", "leaf-2", "link-0"]
    assert not calls.is_due
    calls.graph({"other-0": []})
    calls.graph({"link-1": ["link-0"]})
    assert calls.epoch("link-1") == 3  # of the call it waits for
    calls.change()
    assert calls.sorted == ["link-0", "leaf-1", "leaf-2", "link-1", "other-0"]


def test_a_call_that_an_older_workflow_needs_belongs_to_it(calls):
    known(calls, leaf=1.0)
    calls.graph({"leaf-old": []})
    calls.graph({"leaf-between": []})
    calls.graph({"leaf-young": []})
    calls.graph({"join-1": ["leaf-old", "leaf-young"]})
    calls.change()
    assert calls.sorted.index("leaf-young") < calls.sorted.index("leaf-between")


def test_the_order_changes_when_a_length_becomes_known(calls):
    calls.order.lengths.expect({"short": ("a", 1.0, None), "long": ("a", 1.5, None)})
    graph = {"short-0": [], "long-0": [], "short-1": [], "long-1": []}
    calls.graph(graph)
    assert calls.sorted[:2] == ["long-0", "long-1"]
    calls.run("long-0", 0.01)
    calls.change()
    assert calls.sorted == ["short-0", "short-1", "long-1"]


def test_a_task_of_which_nothing_is_known_counts_as_a_long_one_until_a_call_has_ended(calls):
    known(calls, leaf=1.0, link=10.0)
    calls.graph({"leaf-1": [], **chain("link", 2), **{f"new-{i}": [] for i in range(3)}})
    assert calls.sorted == ["new-0", "new-1", "new-2", "link-0", "link-1", "leaf-1"]
    calls.run("new-0", 0.01)
    calls.change()
    assert calls.sorted == ["link-0", "link-1", "leaf-1", "new-1", "new-2"]


def test_of_equal_paths_the_one_that_most_calls_wait_for_comes_first(calls):
    known(calls, leaf=1.0, link=1.0)
    calls.graph({"leaf-1": [], "link-1": ["leaf-1"], "leaf-2": [],
                 "link-2": ["leaf-2"], "link-3": ["leaf-2"]})  # fmt: skip
    assert calls.sorted[:2] == ["leaf-2", "leaf-1"]


def test_a_length_that_stays_the_same_changes_nothing(calls):
    calls.order.lengths.expect({"leaf": ("a", 1.0, None)})
    calls.graph({f"leaf-{i}": [] for i in range(8)} | chain("link", 2))
    calls.order._change_soon()
    calls.change()
    for i in range(4):
        calls.run(f"leaf-{i}", 1.0)
    assert not calls.is_due


def test_workers_are_told_of_calls_that_they_have_not_begun(calls):
    known(calls, leaf=1.0, link=1.0)
    ours, dasks = calls.worker("ours"), calls.worker("dasks", ours=False)
    calls.graph({"link-0": [], "link-1": [], "link-2": [], "leaf-0": []})
    calls.place("link-0", ours)
    calls.place("link-1", ours, begun=True)
    calls.place("link-2", dasks)
    calls.place("leaf-0", ours)
    calls.graph({"join-0": ["link-0", "link-1", "link-2"]})
    calls.change()
    assert calls.told("ours") == ["link-0"]
    assert calls.told("dasks") == []


def test_the_schedulers_queue_is_sorted_anew(calls):
    known(calls, leaf=1.0)
    calls.graph({"leaf-1": [], "leaf-2": []})
    for key in ("leaf-1", "leaf-2"):
        calls.move(key, "queued")
        calls.scheduler.queued.add(calls.scheduler.tasks[key])
    calls.graph({"join-0": ["leaf-2"]})
    calls.change()
    assert [task.key for task in calls.scheduler.queued.sorted()] == ["leaf-2", "leaf-1"]


def test_a_known_call_in_another_graph_keeps_its_long_path(calls):
    known(calls, link=1.0)
    calls.graph({"leaf-0": [], **chain("link", 3)})
    before = calls.scheduler.tasks["link-0"].priority
    calls.graph({"link-0": []})
    assert calls.scheduler.tasks["link-0"].priority == before


def test_calls_of_calls_stay_before_all_others(calls):
    calls.graph({"outer-0": []})
    calls.graph({"nested-0": ["outer-0"]}, generation=-0.01)
    assert calls.epoch("nested-0") == -0.01
    calls.order._change_soon()
    calls.change()
    assert calls.epoch("outer-0") == 1


def test_results_that_fill_the_memory_bring_back_the_static_order(calls):
    known(calls, leaf=1.0, link=1.0)
    worker = calls.worker("full", stored=GIB // 2)
    calls.graph({"leaf-1": [], **chain("link", 3)})
    assert calls.sorted[0] == "link-0"
    calls.order._look()
    calls.change()
    assert calls.sorted == ["leaf-1", "link-0", "link-1", "link-2"]
    worker.nbytes = 0
    calls.order._look()
    calls.change()
    assert calls.sorted[0] == "link-0"


def test_submitted_leaves_the_priorities_of_dask(calls):
    calls.order.rule = "submitted"
    calls.graph({"leaf-1": [], **chain("link", 3)})
    assert all(len(task.priority) == 3 for task in calls.scheduler.tasks.values())
    assert calls.sorted == ["leaf-1", "link-0", "link-1", "link-2"]


def test_many_calls_are_ordered_in_turns(calls):
    known(calls, leaf=1.0)
    calls.graph({f"leaf-{i}": [] for i in range(3000)})
    calls.graph({"leaf-3000": ["leaf-2999"]})
    calls.change()
    assert calls.sorted[0] == "leaf-2999"


def test_a_call_that_is_known_moves_with_all_others_when_one_more_waits_for_it(calls):
    known(calls, leaf=1.0, link=1.0)
    worker = calls.worker("worker")
    calls.graph({"leaf-1": [], "leaf-2": []})
    calls.place("leaf-2", worker)
    before = calls.scheduler.tasks["leaf-2"].priority
    calls.graph({"link-1": ["leaf-2"], "leaf-2": []})  # as Dask tells of a call with a future
    assert calls.scheduler.tasks["leaf-2"].priority == before
    calls.change()
    assert calls.sorted[0] == "leaf-2"
    assert calls.told("worker") == ["leaf-2"]


def test_a_call_behind_a_longer_path_changes_nothing(calls):
    known(calls, leaf=1.0, link=1.0)
    calls.graph({**chain("link", 3), "other-0": []})
    calls.order._timer = None
    calls.graph({"leaf-1": ["link-0"]}, generation=calls.generation)
    assert not calls.is_due
    calls.graph({"leaf-2": ["link-2"]}, generation=calls.generation)
    assert calls.is_due


def test_one_more_call_that_waits_with_the_same_path_changes_nothing_at_once(calls):
    known(calls, link=1.0)
    calls.graph({**chain("link", 2), "other-0": []})
    calls.order._timer = None
    calls.graph({"link-2": ["link-0"]}, generation=calls.generation)
    assert not calls.is_due
