"""Results of workers that leave go to one of a few others, however many there are."""

from collections import Counter
from types import SimpleNamespace

import pytest
from distributed.active_memory_manager import ReduceReplicas

from scalable.dask_compat.scheduler_extensions import COMPARED, SamplingMemoryManager


class Counting(dict):
    """Memory in use of each worker, and how often it was looked up."""

    looks = 0

    def __getitem__(self, worker):
        self.looks += 1
        return super().__getitem__(worker)


def manager_of(memory, running=None):
    manager = object.__new__(SamplingMemoryManager)
    running = set(memory) if running is None else running
    manager.scheduler, manager._running = SimpleNamespace(running=running), list(running)
    manager.workers_memory = Counting(memory)
    return manager


def result(*holders):
    return SimpleNamespace(state="memory", who_has=set(holders), actor=False)


def test_few_of_many_workers_are_compared():
    manager = manager_of({f"w{i}": i for i in range(5000)})
    assert manager._find_recipient(result("w1"), None, set()) is not None
    assert manager.workers_memory.looks <= COMPARED


def test_results_spread_over_all_workers():
    memory = {f"w{i}": 0 for i in range(200)}
    manager = manager_of(memory)
    for _ in range(2000):
        manager.workers_memory[manager._find_recipient(result("gone"), None, set())] += 1
    counts = Counter(manager.workers_memory.values())
    assert set(counts) <= {9, 10, 11}


def test_all_workers_are_looked_at_where_the_few_cannot_take_it():
    memory = {f"w{i}": i for i in range(50)}
    holders = set(memory) - {"w49"}
    assert manager_of(memory)._find_recipient(result(*holders), None, set()) == "w49"
    assert manager_of(memory)._find_recipient(result(*memory), None, set()) is None


def test_a_policy_that_names_workers_is_obeyed():
    manager = manager_of({f"w{i}": i for i in range(500)})
    assert manager._find_recipient(result("gone"), {"w480", "w490"}, set()) == "w480"


@pytest.mark.parametrize("count", [0, 1, COMPARED])
def test_few_workers_are_compared_as_dask_does(count):
    memory = {f"w{i}": i for i in range(count)}
    found = manager_of(memory)._find_recipient(result("gone"), None, set())
    assert found == ("w0" if count else None)


class AnyPolicy(ReduceReplicas):
    """A policy that may do more than to drop copies."""


@pytest.mark.parametrize(
    ("copies", "policies", "looks"),
    [(0, [ReduceReplicas], False), (1, [ReduceReplicas], True), (0, [AnyPolicy], True)],
)
def test_no_worker_is_looked_at_where_no_result_has_copies(copies, policies, looks):
    manager = manager_of({})
    manager.scheduler.replicated_tasks = {object() for _ in range(copies)}
    manager.scheduler.workers = Counting()
    manager.policies = {kind() for kind in policies}
    manager.measure, ran = "managed", []
    manager._run_policies = lambda: ran.append(True)
    manager.run_once()
    assert ran == [True] * looks
