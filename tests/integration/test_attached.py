"""What Dask's own tools, browsers and other users see of a detached cluster."""

import asyncio
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from distributed import Client
from distributed.security import Security

import scalable
from python_runs import run_python
from scalable.client.attached import AttachedCluster, DiscoveredCluster
from scalable.clusters.creation import DetachOptions
from scalable.clusters.discovery import clusters_for_dask
from scalable.clusters.ending import end
from scalable.clusters.services import wait_until_ready
from scalable.errors import ClusterError
from scalable.model import ClusterRecord
from scalable.records import ClusterDirectory, find
from scalable.watch.lab import lab_cluster

MANIFEST = """\
version: 1
project: {name: tests, default_storage: results}
targets:
  local: {provider: local, processes: true}
components:
  a: {cpus: 1}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One cluster for all: its directory on disk."""
    place = tmp_path_factory.mktemp("attached")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        patch.setenv("SCALABLE_RUNS_DIR", str(place / "runs"))
        patch.chdir(place)
        (place / "scalable.yaml").write_text(MANIFEST)
        session = scalable.ScalableSession.from_yaml()
        options = DetachOptions(name="one", dashboard_address=":0")
        directory = session.create(session.plan(), options)
        try:
            wait_until_ready(directory, timeout_s=120)
            yield directory
        finally:
            end("one")


def test_other_credentials_and_none_are_refused(cluster):
    address = cluster.scheduler()["address"]
    with pytest.raises((OSError, TimeoutError)):
        Client(address, security=Security.temporary(), timeout=1)
    with pytest.raises((OSError, TimeoutError)):
        Client(address.replace("tls://", "tcp://"), timeout=1)


def test_another_user_can_neither_read_nor_list(monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o755)
        monkeypatch.setenv("XDG_STATE_HOME", shared)
        values = dict.fromkeys(("provider", "target", "project", "owner"), "local")
        record = ClusterRecord(id=str(uuid.uuid4()), name="n", created_at="", **values)
        directory = ClusterDirectory.create(record)
        directory.write_pem("-----BEGIN ca", "-----BEGIN cert", "-----BEGIN key")
        for command in (
            ["ls", directory.path.parent],
            ["cat", directory.path / "tls" / "key.pem"],
            ["cat", directory.path / "record.json"],
        ):
            denied = subprocess.run(
                command, user=65534, group=65534, extra_groups=[], capture_output=True, check=False
            )
            assert b"Permission denied" in denied.stderr
        assert find("n").path == directory.path


def test_a_bare_dask_client_finds_the_credentials(cluster):
    script = (
        "from distributed import Client\n"
        f"print(Client({cluster.scheduler()['address']!r}).submit(abs, -5).result(60))\n"
    )
    loader = "scalable.clusters.connecting.load_security"
    environment = {**os.environ, "DASK_DISTRIBUTED__CLIENT__SECURITY_LOADER": loader}
    shown = run_python("-c", script, env=environment)
    assert shown.stdout == "5\n", shown.stderr


def test_daskss_discovery_and_from_name(cluster):
    async def found():
        return [(name, cls) async for name, cls in clusters_for_dask()]

    assert asyncio.run(found()) == [("one", DiscoveredCluster)]
    from importlib.metadata import entry_points

    points = entry_points(group="dask_cluster_discovery")
    assert [p.load() for p in points if p.name == "scalable"] == [clusters_for_dask]

    async def used():
        async with await AttachedCluster.from_name("one", asynchronous=True) as attached:
            await attached.scale("a", 2)
            await attached.refresh()
            assert attached.pools["a"].wanted == 2
            async with Client(attached, asynchronous=True) as client:
                assert await client.submit(abs, -4) == 4

    asyncio.run(used())
    with scalable.connect("one") as client:
        assert client.submit(abs, -4, tag="a").result(timeout=60) == 4


def test_the_object_shows_workers_as_they_come_and_go(cluster):
    """As dask-ctl's verb ``scale`` waits, and Dask's own displays look."""
    with AttachedCluster.from_name("one") as attached:
        attached.scale_up(2)
        until(lambda: len(attached.scheduler_info["workers"]) == 2)
        assert attached.worker_spec == {name: {"pool": "a"} for name in attached.workers}
        assert attached.plan == attached.requested == attached.observed
        assert attached.dashboard_link == cluster.scheduler()["dashboard"]
        assert "scalable.scheduler" in attached.get_logs()["Scheduler"]
        assert "workers=2" in repr(attached)
        attached.scale_down(list(attached.workers)[:1])
        until(lambda: len(attached.scheduler_info["workers"]) == 1)
        with attached.get_client() as client:
            assert client.submit(abs, -8, tag="a").result(timeout=60) == 8
        attached.adapt("a", 1, math.inf, wait_count=3, interval="1s", target_duration="5s")
        with pytest.raises(ClusterError, match=r"adapt\(minimum_cores=...\) cannot be sent"):
            attached.adapt("a", minimum_cores=2)
        with pytest.raises(ClusterError, match="target_duration"):
            attached.adapt("a", target_duration="0s")
        attached.adapt("a", enabled=False)
    assert "workers=1" in repr(attached)

    async def shown():
        async with await AttachedCluster.from_name("one", asynchronous=True) as attached:
            await attached.scale("a", 2)
            while len(attached.scheduler_info["workers"]) < 2:
                await asyncio.sleep(0.05)
            await attached.scale_down(list(attached.workers)[:1])

    asyncio.run(asyncio.wait_for(shown(), 60))


def test_an_object_that_was_dropped_keeps_nothing_waiting(cluster):
    script = (
        "from scalable.client.attached import DiscoveredCluster\n"
        "one, two = (DiscoveredCluster.from_name('one') for _ in range(2))\n"
        "del one\n"
        "print(two.scheduler_address)"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.strip() == cluster.scheduler()["address"]


def test_a_blocking_cluster_object(cluster):
    with scalable.SlurmCluster.from_name("local/one") as attached:
        assert "workers" in attached.scheduler_info
        assert attached.scheduler_address == cluster.scheduler()["address"]
        attached.scale(1)
        assert attached.pools["a"].wanted == 1
        with pytest.raises(ClusterError, match="no pool 'b'"):
            attached.scale("b", 1)
        with scalable.ScalableClient(attached) as client:
            assert client.submit(abs, -6, tag="a").result(timeout=60) == 6
    with scalable.connect("one") as client:
        assert client.submit(abs, -7, tag="a").result(timeout=60) == 7


def test_twenty_lists_at_once_while_clusters_come_and_go(cluster):
    def come_and_go(number):
        for turn in range(10):
            values = dict.fromkeys(("provider", "target", "project", "owner"), "local")
            made = ClusterDirectory.create(
                ClusterRecord(
                    id=f"0000{number}{turn:03}-0000-4000-8000-000000000000",
                    name=f"n{number}-{turn}",
                    created_at="2026-01-01T00:00:00+00:00",
                    **values,
                )
            )
            made.remove()

    def names(_):
        listing = scalable.list_clusters()
        assert listing.errors == ()
        return {row.name for row in listing}

    with ThreadPoolExecutor(8) as threads:
        coming = [threads.submit(come_and_go, n) for n in range(4)]
        assert all("one" in found for found in threads.map(names, range(20)))
        for done in coming:
            done.result(timeout=60)


def test_the_factory_for_dask_ctl(cluster, monkeypatch):
    """As dask-ctl's verb ``create`` uses it: blocking, while an event loop runs in this thread."""

    async def used():
        made = lab_cluster(name="made", asynchronous=False)
        made.shutdown_on_close = False
        return made

    made = asyncio.run(used())
    assert "scalable.connect('made')" in made.get_snippet()
    made.scale(1)
    until(lambda: made.workers)
    monkeypatch.setattr("scalable.client.attached.CONNECT_TIMEOUT_S", 60.0)
    began = time.monotonic()
    made.close()  # ends it
    assert time.monotonic() - began < 25, "it was asked although it listens no more"
    until(lambda: [row.name for row in scalable.list_clusters()] == ["one"])


def test_the_factory_for_jupyterlab(cluster):
    """As the extension's manager uses it."""

    async def used():
        made = await lab_cluster(asynchronous=True)
        assert len(made.id.split("-")) == 5
        assert made.scheduler_info["workers"] is not None
        assert made.scheduler_address.startswith("tls://")
        assert made.dashboard_link.startswith("http://127.0.0.1:")
        adaptive = made.adapt(minimum=0, maximum=1)  # not awaited there
        assert (adaptive.minimum, adaptive.maximum) == (0, 1)
        await adaptive
        await made.scale(1)
        assert find(made.id).record().name == "tests-local"
        await made.close()
        return made.id

    gone = asyncio.run(used())
    until(lambda: not any(row.id == gone for row in scalable.list_clusters()))


def write(name):
    with scalable.current_storage().open(f"maps/{name}", "w") as file:
        file.write(name)
    return os.getpid()


def test_tasks_and_sessions_know_the_storage_of_the_manifest(cluster):
    here = Path("results").resolve()
    with scalable.connect("one") as client:
        assert client.submit(write, "one", tag="a").result() != os.getpid()
    session = scalable.ScalableSession.attach("one")
    assert session.storage == scalable.Storage(str(here))
    assert session.storage.ls("maps") == ["maps/one"]
    session.record_artifact(session.storage.url("maps/one"), kind="map")
    row = json.loads((session.run_path / "artifacts.jsonl").read_text())
    assert (row["uri"], row["bytes"]) == (f"file://{here}/maps/one", 3)
    session.close()


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import scalable
import script_model
client = scalable.connect("one")
print(client.submit(script_model.answer, tag="a").result(timeout=60))
import script_only_calls_import
def lazily():
    import script_lazy
    return script_lazy.answer()
with client.pool(tag="a") as pool:
    print(pool.submit(lazily).result(timeout=60))
client.close()
"""


def test_a_script_runs_its_own_modules(cluster, tmp_path, monkeypatch):
    shown = []
    for answer in (1, 2):
        place = tmp_path / str(answer)  # another directory, the same names
        place.mkdir()
        (place / "script_only_calls_import.py").write_text("")
        (place / "script_model.py").write_text(f"def answer():\n    return {answer}\n")
        lazy = place if answer == 1 else tmp_path / "1"
        (lazy / "script_lazy.py").write_text(f"def answer():\n    return {answer}\n")
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        done = run_python("-c", SCRIPT, place, env=environment)
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout.split())
    assert shown == [["1", "1"], ["2", "2"]]
    assert "another version of module script_model" in done.stderr
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "only_there.py").write_text("def answer():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    found = importlib.import_module("only_there")
    with scalable.connect("one") as client:
        with pytest.raises(ModuleNotFoundError, match="No module named 'only_there' on "):
            client.submit(found.answer, tag="a").result(timeout=60)
        assert client.submit(abs, -1, tag="a").result(timeout=60) == 1


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
