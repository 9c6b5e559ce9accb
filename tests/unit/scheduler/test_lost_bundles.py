"""Calls of lost bundles: what runs again is counted when it begins, what fails is counted once."""

import pickle
from types import SimpleNamespace

import pytest
from distributed.scheduler import KilledWorker

from scalable.protocol.measured import BUNDLE_ANNOTATION, TASK_ANNOTATION
from scalable.scheduler.bundle_relay import BundleRelay
from scalable.scheduler.overviews import NameCounts
from scalable.scheduler.recorder import Recorder
from scalable.scheduler.task_log import TaskLog
from unit.scheduler.test_task_log import FakeScheduler, Rows

KILLED = pickle.dumps(KilledWorker("x", SimpleNamespace(address="tcp://w"), 0))


class Lossy:
    """A scheduler that loses the workers of bundles, and its record."""

    def __init__(self, *, rows=False):
        self.scheduler, self.rows, self.each = FakeScheduler(), Rows(), rows
        self.lost = BundleRelay()
        self.lost.install(self.scheduler)
        self.counts = NameCounts(self.scheduler)
        self.recorder = Recorder(self.scheduler, self.rows, ["a"])
        self.ledger = TaskLog.of(self.scheduler)

    def send(self, key, after=None, losses=0):
        """Send a bundle of one task; a worker of the same name takes it."""
        about = {"calls": 1, "rows": self.each}
        about |= {} if after is None else {"after": after, "again": 1}
        about |= {"losses": losses, "arguments": "(1,)"} if losses else {}
        task = self.scheduler.add(key, {BUNDLE_ANNOTATION: about, TASK_ANNOTATION: "fit"}, {"a": 1})
        task.priority = (len(self.scheduler.tasks),)
        task.who_wants = [SimpleNamespace(client_key="me")]
        self.scheduler.send(key)
        self.scheduler.move(key, "waiting", "processing")

    def begin(self, key):
        """Report the start of a suspected task."""
        self.ledger.find(key).suspect_began = True

    def lose(self, worker, *keys):
        """Lose a worker with one thread that had these bundles."""
        self.scheduler.connect(f"tcp://{worker}", worker)
        taken = self.scheduler.workers[f"tcp://{worker}"]
        taken.executing, taken.long_running = [], []  # the tasks of the fake have no hash
        for key in keys:
            self.scheduler.tasks[key].exception_blame = self.scheduler.tasks[key]
            self.scheduler.move(key, "erred", exception=KILLED, worker=f"tcp://{worker}")
        message = {
            "action": "remove-worker", "worker": f"tcp://{worker}", "expected": False,
            "processing-tasks": set(keys), "lost-computed-tasks": set(),
        }  # fmt: skip
        self.ledger.log_event("all", message)
        self.scheduler.remove(f"tcp://{worker}")

    def reruns(self):
        self.recorder.flush()
        rows = self.rows.get("tasks", [])
        return [(r["task_id"], r["reason"], r["lost"]) for r in rows if r["state"] == "rerun"]


@pytest.mark.parametrize("rows", [False, True])
def test_a_call_that_is_given_up_has_failed_once_and_ran_again_as_often_as_it_began(rows):
    lossy = Lossy(rows=rows)
    lossy.send("one")
    lossy.lose("w1", "one")
    lossy.send("two", after="one", losses=1)
    lossy.begin("two")
    lossy.lose("w2", "two")
    lossy.send("three", after="two", losses=2)
    lossy.begin("three")
    lossy.lose("w3", "three")
    (row,) = (row for row in lossy.rows["failures"] if "count" in row)  # others: lost workers
    assert (row["failure_class"], row["count"], row["details"]["tries"]) == ("LostWorkers", 1, 3)
    assert row["message"] == (
        "task 'fit' is given up: 3 workers were lost while they ran it (the last was w3)"
    )
    assert (row["details"]["worker"], row["details"]["arguments"]) == ("w3", "(1,)")
    (counted,) = lossy.counts
    assert counted.phases[2:] == [0, 1, 0, 0]
    place = "/0" if rows else ""
    assert lossy.reruns() == [
        (f"two{place}", "worker lost", "w1"),
        (f"three{place}", "worker lost", "w2"),
    ]


def test_a_bundle_that_waited_at_the_lost_worker_did_not_begin(tmp_path):
    lossy = Lossy()
    lossy.send("one")
    lossy.lose("w1", "one")
    lossy.send("before")
    lossy.send("two", after="one")
    lossy.lose("w2", "before", "two")  # of these, the worker's one thread ran the first
    assert lossy.reruns() == []
    lossy.send("three", after="two", losses=2)
    lossy.begin("three")
    lossy.lose("w3", "three")
    assert lossy.reruns() == [("three", "worker lost", "w1")]
    assert next(row["details"]["tries"] for row in lossy.rows["failures"] if "count" in row) == 2
