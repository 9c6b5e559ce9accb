"""Clusters whose making or ending was interrupted, or whose files and processes have changed."""

import fcntl
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from scalable.clusters import ending, resuming
from scalable.clusters.discovery import ClusterListing, list_clusters
from scalable.errors import ClusterError, UnknownClusterError
from scalable.files import write_private
from scalable.liveness import identify, identify_process
from scalable.model import ClusterRecord, PoolStatus
from scalable.records import ClusterDirectory, all_directories, find, read_access_file, status_of
from scalable.records import directory as records_directory
from scalable.records.access_file import AccessFile
from unit.programs import printed_by

NOW = {"state": "running", "reason": None, "pools": {"a": {"wanted": 2, "running": 2}}}
ANOTHER_BOOT = "of another boot"


def running(record, identity, **more):
    """A cluster whose scheduler says that it is well, and is that process."""
    made = ClusterDirectory.create(record(**more))
    made.write_scheduler({**identity, "address": "tls://127.0.0.1:1"})
    made.write_status({**NOW, "written_at": time.time(), "managers": [{"id": "m", "state": "on"}]})
    return made


@pytest.fixture
def own_places(monkeypatch):
    """Only what is on record here, whatever else this machine runs."""

    def recorded_only(**_):
        found, _ = all_directories()
        return ClusterListing(tuple(status_of(d, time.time()) for d in found))

    monkeypatch.setattr(ending, "list_clusters", recorded_only)


class TestProcesses:
    """On what a cluster stands."""

    @pytest.mark.parametrize("other", [
        pytest.param({"boot_id": ANOTHER_BOOT}, id="from before a reboot"),
        pytest.param({"start_ticks": 1}, id="another process has the number"),
    ])  # fmt: skip
    def test_a_record_of_another_time_is_stale_and_no_signal_is_sent(
        self, record, child, own_places, other
    ):
        made = running(record, {**identify(child.pid), **other})
        write_private(made.path / "services.json", "{}")
        status = status_of(made, time.time())
        assert status.state == "stale"
        assert status.pools["a"] == PoolStatus(wanted=2)
        assert status.managers[0]["state"] == "lost"
        assert [g.kind for g in ending.prune(dry_run=True)] == ["stale"]
        assert made.path.exists()
        assert [g.kind for g in ending.prune(dry_run=False)] == ["stale"]
        assert not made.path.exists()
        time.sleep(0.2)
        assert child.poll() is None

    def test_down_of_a_stale_one_sends_no_signal(self, record, child):
        running(record, {**identify(child.pid), "start_ticks": 1})
        assert ending.end("one") is True
        assert ending.end("one") is False
        time.sleep(0.2)
        assert child.poll() is None

    def test_a_zombie_is_a_failure_and_not_stale(self, record, child):
        made = running(record, identify(child.pid))
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert status_of(made, time.time()).state == "failed"

    def test_one_of_another_host_goes_by_what_it_says(self, record):
        made = running(record, {**identify_process(), "host": "elsewhere", "boot_id": "theirs"})
        assert status_of(made, time.time()).state == "running"
        assert status_of(made, time.time() + 60).state == "unreachable"

    def test_a_creation_from_before_a_reboot_is_stale(self, record):
        creator = identify_process()
        made = ClusterDirectory.create(record(stage="creating", creator=creator))
        assert status_of(made, time.time()).state == "creating"
        before = {**creator, "boot_id": ANOTHER_BOOT}
        old = ClusterDirectory.create(record("old", stage="creating", creator=before))
        assert status_of(old, time.time()).state == "stale"

    def test_one_that_has_said_nothing_yet_shows_what_it_is_asked_for(self, record):
        managers = {"m": {"target": "t", "provider": "local"}}
        made = ClusterDirectory.create(record(wanted={"a": 3}, managers=managers))
        status = status_of(made, time.time())
        assert status.state == "starting"
        assert status.pools == {"a": PoolStatus(wanted=3)}
        assert status.managers == ({"id": "m", "target": "t", "state": "starting"},)


class TestMaking:
    """A directory is a cluster's from the moment that it holds a record."""

    @pytest.fixture
    def half(self, record, monkeypatch):
        """What is there after a creation that was killed just before its last step."""
        wanted = record()

        def killed(self, name, value):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(ClusterDirectory, "_write", killed)
            with pytest.raises(KeyboardInterrupt):
                ClusterDirectory.create(wanted, manifest_yaml="text", plan={})
        return ClusterDirectory(ClusterDirectory.parent() / wanted.id)

    def test_half_a_cluster_is_none(self, half, record):
        assert (half.path / "manifest.yaml").exists()
        assert all_directories() == ([], [])
        with pytest.raises(UnknownClusterError):
            find("one")
        assert ClusterDirectory.create(record("one")).record().name == "one"

    def test_it_is_left_over_once_nobody_can_be_at_it(self, half, own_places):
        assert ending.prune(dry_run=False) == []
        then = time.time() - 120
        os.utime(half.path, (then, then))
        found = ending.prune(dry_run=True)
        assert [(g.kind, g.id) for g in found] == [("leftover", half.id)]
        assert half.path.exists()
        ending.prune(dry_run=False)
        assert not half.path.exists()
        assert (half.path.parent / ".lock").exists()

    def test_waiting_for_the_lock_ends_at_its_time_limit(self, record, state, monkeypatch):
        ClusterDirectory.create(record())
        monkeypatch.setattr(records_directory, "LOCK_TIMEOUT_S", 0.3)
        with (state / ".lock").open() as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            began = time.monotonic()
            with pytest.raises(ClusterError, match=f"another process has held {state}/.lock"):
                ClusterDirectory.create(record("two"))
            assert time.monotonic() - began >= 0.3
        assert {d.record().name for d in all_directories()[0]} == {"one"}
        ClusterDirectory.create(record("two"))

    def test_a_held_lock_is_waited_for(self, record, state):
        ClusterDirectory.create(record())
        with (state / ".lock").open() as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            release = threading.Timer(0.3, fcntl.flock, (other, fcntl.LOCK_UN))
            release.start()
            assert ClusterDirectory.create(record("two")).record().name == "two"
            release.join()

    def test_a_file_system_without_locks_is_named(self, record, state, monkeypatch):
        def refused(descriptor, operation):
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(fcntl, "flock", refused)
        with pytest.raises(ClusterError, match=f"{state}/.lock cannot be locked") as caught:
            ClusterDirectory.create(record())
        assert "XDG_STATE_HOME" in caught.value.hint

    def test_a_directory_that_others_can_enter_is_closed(self, record, state):
        state.mkdir(parents=True)
        state.chmod(0o755)
        ClusterDirectory.create(record())
        assert state.stat().st_mode & 0o777 == 0o700


class TestRemoving:
    """Until the last step the cluster is visible."""

    def test_the_record_goes_last(self, record, monkeypatch):
        made = running(record, identify_process())
        made.write_request("m", "text", None)
        made.write_pem("-----BEGIN ca", "-----BEGIN cert", "-----BEGIN key")
        (made.path / "link").symlink_to(made.path / "tls")
        made.set_stage("deleting")
        rmtree = shutil.rmtree

        def killed(path, **more):
            if path == made.path:
                raise KeyboardInterrupt
            rmtree(path, **more)

        with monkeypatch.context() as patched:
            patched.setattr(shutil, "rmtree", killed)
            with pytest.raises(KeyboardInterrupt):
                made.remove()
        assert [p.name for p in made.path.iterdir()] == ["record.json"]
        assert status_of(made, time.time()).state == "deleting"
        made.remove()
        assert not made.path.exists()

    def test_two_at_once_are_fine(self, record, monkeypatch):
        made = running(record, identify_process())
        iterdir = Path.iterdir

        def late(self):
            shutil.rmtree(self)
            return iterdir(self)

        monkeypatch.setattr(Path, "iterdir", late)
        made.remove()
        assert not made.path.exists()

    def test_a_link_is_removed_and_what_it_points_to_is_not(self, record, tmp_path):
        made = running(record, identify_process())
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "file").touch()
        (made.path / "link").symlink_to(tmp_path / "results")
        made.remove()
        assert not made.path.exists()
        assert (tmp_path / "results" / "file").exists()

    def test_a_removed_record_cannot_be_written_again(self, record):
        made = ClusterDirectory.create(record())
        made.remove()
        made.set_stage("deleting")
        assert not made.path.exists()
        assert (made.scheduler(), made.status(), made.managers()) == (None, None, {})
        with pytest.raises(FileNotFoundError):
            status_of(made, time.time())


class TestUnreadable:
    """What cannot be read is not gone."""

    @pytest.mark.parametrize("harm", ["wide", "garbage", "not json", "deep", "of another version"])
    def test_it_is_not_taken_for_gone_and_can_be_ended(self, record, child, harm, monkeypatch):
        monkeypatch.setattr(ending, "provider_names", lambda: ("local",))
        made = running(record, identify(child.pid))
        path = made.path / "record.json"
        match harm:
            case "wide":
                path.chmod(0o644)
            case "garbage":
                write_private(path, "[]")
            case "not json":
                write_private(path, '{"id": ')
            case "deep":
                write_private(path, 100_000 * "[")
            case _:
                write_private(path, '{"id": "x"}')
        for name in ("another", made.id[:8]):
            with pytest.raises(ClusterError, match=made.id) as caught:
                find(name)
            assert not isinstance(caught.value, UnknownClusterError)
            assert str(path) in str(caught.value)
            with pytest.raises(ClusterError, match=str(path)):
                ending.end(name)
        assert child.poll() is None
        if harm == "wide":  # its text still has the name
            assert find("one").path == made.path
        assert ending.end(made.id) is True
        assert child.wait(10) != 0
        assert not made.path.exists()

    @pytest.mark.parametrize(("change", "words"), [
        ({"wanted": {"crops": "many"}}, "wanted.crops is 'many'"),
        ({"managers": {"m": {"provider": "local"}}}, "managers.m.target is None"),
        ({"managers": {"m": 7}}, "managers.m is 7"),
        ({"managers": {"m": {"target": "t", "limits": {"a": "b"}}}}, "limits.a is 'b'"),
        ({"idle_timeout_s": "soon"}, "idle_timeout_s is 'soon'"),
        ({"services": None}, "services is None"),
    ])  # fmt: skip
    def test_a_value_of_another_type_is_named_and_costs_only_its_row(self, record, change, words):
        made = running(record, identify_process())
        write_private(made.path / "record.json", json.dumps({**made.record().to_dict(), **change}))
        ClusterDirectory.create(record("two"))
        listing = list_clusters()
        assert [row.name for row in listing if not row.orphan] == ["two"]
        (error,) = (error for error in listing.errors if str(made.path) in error)
        assert words in error

    def test_a_manager_of_an_older_record_gets_the_usual_values(self, record):
        made = ClusterDirectory.create(record(managers={"m": {"target": "t"}}))
        usual = {"target": "t", "provider": "local", "priority": 0, "limits": {}}
        usual["scheduler_address"] = None
        assert made.record().managers == {"m": usual}

    def test_a_new_name_is_free_and_one_in_an_unreadable_record_is_not(self, record):
        made = running(record, identify_process())
        data = {**made.record().to_dict(), "wanted": {"crops": "many"}}
        write_private(made.path / "record.json", json.dumps(data))
        assert resuming.running_cluster("two") is None
        with pytest.raises(ClusterError, match=r"record of cluster 'one' cannot be read.*crops"):
            resuming.running_cluster("one")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_a_record_of_somebody_else_is_refused_by_name(self, record):
        made = running(record, identify_process())
        os.chown(made.path / "record.json", 12345, -1)
        found, (error,) = all_directories()
        assert found == []
        assert f"{made.path}/record.json belongs to another user" in error

    def test_a_cluster_without_credentials_says_so(self, record):
        made = running(record, identify_process())
        with pytest.raises(
            ClusterError, match="the credentials of cluster .* are missing"
        ) as caught:
            made.pem()
        assert "tls/ca.pem" in caught.value.message

    def test_the_token_is_refused_when_others_can_read_it(self, record):
        made = ClusterDirectory.create(record())
        assert len(made.token()) >= 32
        assert made.token() != ClusterDirectory.create(record("two")).token()
        (made.path / "token").chmod(0o640)
        with pytest.raises(ClusterError, match="token is accessible to other users"):
            made.token()


class TestNames:
    """Which cluster is meant."""

    def test_a_name_goes_before_the_beginning_of_an_id(self, record):
        by_id = ClusterDirectory.create(record("one", id="aaaa1111-0000-4000-8000-000000000000"))
        by_name = ClusterDirectory.create(record("aaaa"))
        assert find("aaaa").path == by_name.path
        assert find("aaaa1").path == by_id.path

    def test_a_beginning_that_several_have_lists_them(self, record):
        for name, tail in (("one", 1), ("two", 2)):
            ClusterDirectory.create(record(name, id=f"aaaa111{tail}-0000-4000-8000-000000000000"))
        with pytest.raises(ClusterError, match=r"local/one \(aaaa1111\), local/two \(aaaa1112\)"):
            find("aaaa111")
        assert find("aaaa1112").record().name == "two"

    @pytest.mark.parametrize("short", ["", "a", "aaa"])
    def test_three_letters_mean_nothing(self, record, short):
        ClusterDirectory.create(record("one", id="aaaa1111-0000-4000-8000-000000000000"))
        with pytest.raises(UnknownClusterError, match="known clusters: one"):
            find(short)


def test_a_record_is_what_was_written_and_may_come_from_a_later_version(record):
    manager = {"target": "t", "provider": "local", "priority": 1, "limits": {"a": 2}}
    manager["scheduler_address"] = "login:8786"
    wanted = record(tags=("a", "b"), managers={"m": manager}, spill_after_s=3.0)
    made = ClusterDirectory.create(wanted, plan={"workers": 1})
    assert made.record() == wanted
    assert made.plan() == {"workers": 1}
    assert ClusterRecord.from_dict({**wanted.to_dict(), "to_come": 1}) == wanted
    with pytest.raises(ValueError, match="not a record of a cluster"):
        ClusterRecord.from_dict({"id": "x"})


def test_an_embedded_cluster_has_no_access_file(record):
    made = running(record, identify_process(), embedded=True, creator=identify_process())
    with pytest.raises(ClusterError, match=f"runs in process {os.getpid()}"):
        AccessFile.of(made)


@pytest.mark.parametrize(("text", "words"), [
    ('{"version": 2}', "version 2"),
    ("[]", "not an access file"),
    ("PEM", "not an access file"),
    ('{"version": 1, "tags": [], "id": "x", "odd": 1}', "not an access file"),
])  # fmt: skip
def test_a_file_that_is_not_an_access_file_is_named(tmp_path, text, words):
    write_private(tmp_path / "access", text)
    with pytest.raises(ClusterError, match=f"{tmp_path}/access.*{words}"):
        read_access_file(tmp_path / "access")


def test_fifty_are_looked_at_without_the_engine(record, state):
    for number in range(50):
        running(record, identify_process(), name=f"n{number}")
    code = (
        "import sys, time\n"
        "from scalable.records import all_directories, status_of\n"
        "states = [status_of(d, time.time()).state for d in all_directories()[0]]\n"
        "assert states == ['running'] * 50, states\n"
        "assert not {'dask', 'distributed', 'pandas'} & set(sys.modules)\n"
    )
    printed_by(code)
