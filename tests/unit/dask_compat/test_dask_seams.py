"""The version of Dask is checked at the start, and events of lost workers are recognized."""

import logging
import re
from importlib import metadata

import pytest

from scalable import dask_compat
from scalable.client.client import ScalableClient
from scalable.dask_compat import NEWEST, OLDEST, check_version
from scalable.dask_compat.scheduler import LostWorker
from scalable.errors import ClusterError
from scalable.manager.pool_cluster import PoolCluster
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.worker.pool_worker import PoolWorker


@pytest.fixture
def installed(monkeypatch):
    """Pretend that another version of distributed is installed."""

    def pretend(version):
        check_version.cache_clear()
        monkeypatch.setattr(dask_compat.metadata, "version", {"distributed": version}.__getitem__)

    yield pretend
    check_version.cache_clear()


@pytest.mark.parametrize(
    "start",
    [
        lambda: PoolCluster(asynchronous=True),
        lambda: ScalableClient("tcp://127.0.0.1:1"),
        lambda: PoolWorker("tcp://127.0.0.1:1"),
        PoolScheduler,
    ],
    ids=["cluster", "client", "worker", "scheduler"],
)
def test_nothing_starts_on_a_version_that_is_too_old(start, installed):
    installed("2026.5.1")
    with pytest.raises(ClusterError, match="distributed 2026.5.1 is too old") as caught:
        start()
    assert "distributed>=2026.6" in caught.value.hint


def test_a_newer_version_than_tested_is_named_once(installed, caplog):
    installed("2031.1.0")
    with caplog.at_level(logging.WARNING, "scalable"):
        check_version()
        check_version()
    assert [record.args[0] for record in caplog.records] == ["2031.1.0"]


@pytest.mark.parametrize("version", ["2026.6.0", "2026.8.0", "2026.8.1.dev3+g1234"])
def test_a_tested_version_needs_no_word(version, installed, caplog):
    installed(version)
    check_version()
    assert not caplog.records


def test_the_supported_versions_are_those_of_the_package():
    required = [r for r in metadata.requires("scalable") if r.startswith("distributed")]
    assert tuple(map(int, re.findall(r"\d+", required[0])[:2])) == OLDEST
    own = tuple(map(int, metadata.version("distributed").split(".")[:2]))
    assert OLDEST <= own <= NEWEST, "raise NEWEST once all tests pass with this version"


def test_events_of_other_kinds_are_no_lost_workers():
    message = {
        "action": "remove-worker", "worker": "tcp://a", "expected": False,
        "processing-tasks": ["x"], "lost-computed-tasks": [],
    }  # fmt: skip
    assert LostWorker.of("all", message).running == ("x",)
    assert LostWorker.of("tcp://a", message) is None
    assert LostWorker.of("all", {"action": "add-worker"}) is None
    assert LostWorker.of("all", "words") is None
