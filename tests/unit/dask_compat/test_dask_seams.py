"""Each seam into Dask holds with the installed version, and a change of Dask is noticed."""

import importlib
import pkgutil

import pytest
from distributed import scheduler as dask_scheduler
from distributed import stealing
from distributed.scheduler import Scheduler

from scalable import dask_compat
from scalable.dask_compat import facts
from scalable.dask_compat.facts import (
    Seams,
    accepts,
    contains,
    declares,
    has,
    is_a,
    mentions,
)
from scalable.dask_compat.scheduler import LostWorker
from scalable.dask_compat.scheduler import seams as scheduler_seams
from scalable.errors import ClusterError


def registries():
    modules = (
        importlib.import_module(f"{dask_compat.__name__}.{found.name}")
        for found in pkgutil.iter_modules(dask_compat.__path__)
    )
    return [module.seams for module in modules if hasattr(module, "seams")]


SEAMS = [(seams, name) for seams in registries() for name in seams.facts]
SEAM_IDS = [f"{seams.process}-{name}" for seams, name in SEAMS]


@pytest.mark.parametrize(("seams", "name"), SEAMS, ids=SEAM_IDS)
def test_seam_holds_with_the_installed_version(seams, name):
    assert seams.facts[name], "a seam states what it relies on"
    assert seams.difference(name) is None


@pytest.mark.parametrize(("seams", "name"), SEAMS, ids=SEAM_IDS)
def test_seam_notices_that_an_object_of_dask_is_gone(seams, name, monkeypatch):
    found, gone = facts.resolve, None

    def resolve(path):
        if path == gone:
            raise AttributeError("gone")
        return found(path)

    monkeypatch.setattr(facts, "resolve", resolve)
    for fact in seams.facts[name]:
        gone = fact.path
        assert "is missing: gone" in (seams.difference(name) or ""), gone


def unverified(monkeypatch, seams=scheduler_seams):
    monkeypatch.setattr(seams, "_verified", False)
    return seams


def test_check_names_seam_difference_and_versions(monkeypatch):
    seams = unverified(monkeypatch)
    monkeypatch.delattr(dask_scheduler.TaskState, "suspicious")
    with pytest.raises(ClusterError) as caught:
        seams.check()
    text = str(caught.value)
    assert (
        "fail_at_first_loss: distributed.scheduler.TaskState has no attribute 'suspicious'" in text
    )
    assert f"distributed {facts.installed()}" in text
    assert "distributed>=" in text


def test_check_notices_a_function_that_no_longer_reads_what_is_set(monkeypatch):
    seams = unverified(monkeypatch)
    monkeypatch.setattr(stealing.WorkStealing, "steal_time_ratio", lambda self, ts: (0, 0))
    with pytest.raises(ClusterError, match="never_steal"):
        seams.check()


def test_check_notices_another_event_of_a_lost_worker(monkeypatch):
    async def remove_worker(self, address, *, stimulus_id, expected=False, close=True):
        self.log_event("all", {"action": "worker-removed"})

    seams = unverified(monkeypatch)
    monkeypatch.setattr(Scheduler, "remove_worker", remove_worker)
    with pytest.raises(ClusterError, match="LostWorker"):
        seams.check()


def test_check_passes_without_an_optional_seam(monkeypatch):
    seams = unverified(monkeypatch)
    monkeypatch.setattr(Scheduler, "add_resources", lambda self: "OK")
    seams.check()
    assert "Scheduler.add_resources has the parameters (self)" in seams.difference("tag_placement")


def test_a_successful_check_is_remembered():
    verified = []

    def verify(found):
        verified.append(found)

    seams = Seams("worker")
    seams.relies_on(facts.Fact("math:pi", verify))(len)
    seams.check()
    seams.check()
    assert len(verified) == 1


def sample(self, first, second=None, *, named, other=1):
    self.attribute = {"key": first, "other-key": second}
    return named, other


class Sample:
    slot = 1

    def __init__(self):
        self.later = None


HERE = f"{__name__}:"


@pytest.mark.parametrize(
    ("fact", "difference"),
    [
        (has(f"{HERE}Sample", "slot"), None),
        (has(f"{HERE}Sample", "slots"), "has no attribute 'slots'"),
        (mentions(f"{HERE}Sample", "later"), None),
        (mentions(f"{HERE}Sample", "earlier"), "does not use 'earlier'"),
        (mentions(f"{HERE}sample", "attribute", "key"), None),
        (mentions(f"{HERE}sample", "a-key"), "does not use 'a-key'"),
        (accepts(f"{HERE}sample", 2, "named"), None),
        (accepts(f"{HERE}sample", 2, "second", "named"), None),
        (accepts(f"{HERE}sample", 2), "has the parameters (self, first, second, named, other)"),
        (accepts(f"{HERE}sample", 1, "named"), "has the parameters"),
        (accepts(f"{HERE}sample", 4, "named"), "has the parameters"),
        (accepts(f"{HERE}sample", 2, "named", "unknown"), "has the parameters"),
        (declares(f"{HERE}sample", "self", "first", "second", "named", "other"), None),
        (declares(f"{HERE}sample", "self", "first"), "not (self, first)"),
        (contains(f"{HERE}Sample.__dict__", "slot"), None),
        (contains(f"{HERE}Sample.__dict__", "none"), "has no entry 'none'"),
        (is_a(f"{HERE}SEAMS", list), None),
        (is_a(f"{HERE}SEAMS", set), "is a list, not a set"),
        (has(f"{HERE}absent"), "is missing"),
        (has("scalable.absent:name"), "is missing"),
    ],
)
def test_facts_say_how_they_differ(fact, difference):
    found = fact.difference()
    assert found is None if difference is None else difference in found


def test_events_of_other_kinds_are_no_lost_workers():
    message = {
        "action": "remove-worker", "worker": "tcp://a", "expected": False,
        "processing-tasks": ["x"], "lost-computed-tasks": [],
    }  # fmt: skip
    assert LostWorker.of("all", message).running == ("x",)
    assert LostWorker.of("tcp://a", message) is None
    assert LostWorker.of("all", {"action": "add-worker"}) is None
    assert LostWorker.of("all", "words") is None
