"""Listing clusters, whatever the plug-ins do."""

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalable import settings
from scalable.clusters import discovery, ending
from scalable.errors import ProviderError
from scalable.files import private_directory, write_private
from scalable.liveness import identify_process
from scalable.providers import registry
from scalable.records import ClusterDirectory
from unit.made_records import made_record


@pytest.fixture
def hang():
    """A function that does not return before the test is over."""
    over = threading.Event()
    yield over.wait
    over.set()


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(discovery, "PLUGIN_TIMEOUT_S", 0.5)
    monkeypatch.setattr(discovery, "entry_points", lambda group: [])
    registered = []

    def add(name, discover, delete=None):
        methods = {"discover": lambda self: discover(), "delete": delete}
        registry.register_provider(name, type(name, (), methods))
        registered.append(name)

    yield add
    for name in registered:
        registry.unregister_provider(name)


def recorded(name="one"):
    return ClusterDirectory.create(made_record(name))


def broken():
    raise ProviderError("the place is on fire")


def test_one_raises_one_hangs_and_the_good_rows_are_there(plugins, hang):
    recorded()
    plugins("fire", broken)
    plugins("tar", hang)
    plugins("rude", lambda: exit(7))
    plugins("good", lambda: [{"id": "some-id", "what": "job 7"}])
    listing = discovery.list_clusters()
    assert [(row.name, row.orphan) for row in listing] == [("one", False), ("", True)]
    assert sorted(listing.errors) == [
        "provider 'fire': ProviderError: the place is on fire",
        "provider 'rude': SystemExit: 7",
        "provider 'tar': no answer within 0.5 s",
    ]


def test_plug_ins_for_dasks_tools_are_asked_and_ours_is_not(plugins, monkeypatch):
    async def theirs():
        yield "theirs", object

    def point(name, load):
        return SimpleNamespace(name=name, value=f"{name}_package:discover", load=load)

    points = [point("kube", lambda: theirs), point("scalable", broken), point("bad", broken)]
    monkeypatch.setattr(discovery, "entry_points", lambda group: points)
    listing = discovery.list_clusters()
    assert [(row.name, row.provider, row.state) for row in listing] == [
        ("theirs", "kube", "unmanaged")
    ]
    assert len(listing.errors) == 1
    assert "'bad'" in listing.errors[0]


def test_plug_ins_are_imported_one_after_the_other_and_asked_side_by_side(plugins, monkeypatch):
    importing, asked = threading.Lock(), threading.Barrier(3)

    def point(name):
        async def discover():
            asked.wait(timeout=10)
            yield name, object

        def load():
            assert importing.acquire(blocking=False), "two imports at once"
            time.sleep(0.05)
            importing.release()
            return discover

        return SimpleNamespace(name=name, value="theirs:discover", load=load)

    monkeypatch.setattr(discovery, "PLUGIN_TIMEOUT_S", 20.0)
    monkeypatch.setattr(discovery, "entry_points", lambda group: [point(n) for n in "abc"])
    listing = discovery.list_clusters()
    assert (sorted(row.name for row in listing), listing.errors) == (["a", "b", "c"], ())


def test_an_import_that_hangs_holds_up_no_other_plug_in(plugins, hang, monkeypatch):
    async def works():
        yield "theirs", object

    points = [
        SimpleNamespace(name="tar", value="tar:discover", load=hang),
        SimpleNamespace(name="good", value="good:discover", load=lambda: works),
    ]
    monkeypatch.setattr(discovery, "entry_points", lambda group: points)
    listing = discovery.list_clusters()
    assert [row.name for row in listing] == ["theirs"]
    assert listing.errors == ("dask_cluster_discovery plug-in 'tar': no answer within 0.5 s",)


def test_units_of_a_recorded_cluster_are_no_orphans(plugins):
    directory = recorded()
    plugins("good", lambda: [{"id": directory.id, "what": "job 7"}])
    assert [row.orphan for row in discovery.list_clusters()] == [False]


def test_orphans_are_ended_only_when_asked(plugins):
    ended = []
    plugins("good", lambda: [{"id": "x", "what": "job 7"}], lambda self, name: ended.append(name))
    found = ending.prune(dry_run=True)
    assert [(g.kind, g.id) for g in found] == [("orphan", "x")]
    assert ended == []
    ending.prune(dry_run=False)
    assert ended == ["x"]


def test_a_cluster_created_during_discovery_is_no_orphan(plugins):
    plugins("good", lambda: [{"id": recorded().id, "what": "job 7"}])
    assert discovery.list_clusters().clusters == ()


def test_left_over_units_in_two_places_are_shown_for_each(plugins):
    plugins("good", lambda: [{"id": "x", "what": "job 7"}])
    plugins("better", lambda: [{"id": "x", "what": "process 7"}])
    assert {row.provider for row in discovery.list_clusters()} == {"good", "better"}


@pytest.mark.parametrize("name", ["record.json", "status.json"])
def test_a_cluster_of_which_a_file_cannot_be_used_is_named_and_is_no_orphan(plugins, name):
    directory = recorded()
    directory.write_status({"pools": {}, "managers": []})
    (directory.path / name).chmod(0o644)
    plugins("good", lambda: [{"id": directory.id, "what": "job 7"}])
    listing = discovery.list_clusters()
    assert listing.clusters == ()
    assert len(listing.errors) == 1
    assert f"{directory.id}/{name} is accessible to other users" in listing.errors[0]


def test_a_row_that_is_none_is_its_plug_ins_fault(plugins):
    plugins("odd", lambda: [{"what": "no id"}])
    assert discovery.list_clusters().errors == ("provider 'odd': KeyError: 'id'",)


def test_a_cluster_that_goes_in_this_moment_is_not_there(plugins, monkeypatch):
    directory = recorded()
    look = discovery.status_of

    def late(*args):
        directory.remove()
        return look(*args)

    monkeypatch.setattr(discovery, "status_of", late)
    listing = discovery.list_clusters()
    assert (listing.clusters, listing.errors) == ((), ())


def test_clusters_are_listed_in_the_order_of_their_creation(plugins):
    for name, day in (("second", 2), ("third", 3), ("first", 1)):
        made = recorded(name)
        record = replace(made.record(), created_at=f"2026-01-0{day}T00:00:00+00:00")
        write_private(made.path / "record.json", json.dumps(record.to_dict()))
    listing = discovery.list_clusters()
    assert [row.name for row in listing] == ["first", "second", "third"]
    assert (listing[0].name, len(listing[1:])) == ("first", 2)
    assert discovery.status("second").name == "second"


@pytest.mark.parametrize(
    ("place", "file"), [("embedded", "owner.json"), ("guests", "managers/far/manager.json")]
)
def test_private_directories_go_with_the_process_that_used_them(plugins, place, file):
    plugins("good", list)
    mine, gone = identify_process(), {**identify_process(), "start_ticks": 1}
    paths = {}
    for name, identity in (("of-mine", mine), ("of-gone", gone)):
        path = paths[name] = settings.state_dir() / place / name
        write_private(
            private_directory((path / file).parent) / Path(file).name, json.dumps(identity)
        )
        os.utime(path, (0, 0))
    found = ending.prune(dry_run=False)
    assert [(g.kind, g.id) for g in found] == [("leftover", "of-gone")]
    assert (paths["of-mine"].exists(), paths["of-gone"].exists()) == (True, False)


def test_a_fresh_directory_without_a_record_is_kept(plugins):
    plugins("good", list)
    path = private_directory(settings.state_dir() / "embedded" / "new")
    assert ending.prune(dry_run=False) == []
    assert path.exists()


@pytest.mark.parametrize("stage", ["creating", "deleting"])
def test_an_unfinished_creation_is_garbage_once_its_process_has_ended(plugins, stage):
    plugins("good", list)
    directory = recorded()
    gone = {**identify_process(), "start_ticks": 1}
    for creator, age_s in ((identify_process(), 0), (gone, 0), (gone, 120)):
        directory.write_record(replace(directory.record(), stage=stage, creator=creator))
        then = time.time() - age_s
        os.utime(directory.path / "record.json", (then, then))
        found = [g.kind for g in ending.prune(dry_run=True)]
    assert found == ["interrupted"]
    directory.write_scheduler(identify_process())
    os.utime(directory.path / "record.json", (0, 0))
    assert ending.prune(dry_run=True) == []  # its scheduler lives
