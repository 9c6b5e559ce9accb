"""Clusters whose programs have ended, here or on another machine: `down`, `prune`, `up`, `manager restart`."""

import json
import os
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from scalable.clusters import connecting, control, creation, ending, resuming, services
from scalable.clusters.discovery import ClusterListing
from scalable.errors import ClusterError, ProviderError
from scalable.liveness import identify, identify_process
from scalable.model import ComponentSpec, DeploymentSpec, Plan, ScalePlan
from scalable.providers import registry
from scalable.records import ClusterDirectory, all_directories, status_of
from unit.made_records import made_record

ELSEWHERE = {**identify_process(), "host": "login1", "boot_id": "theirs", "pid": 4711}
GONE = {**identify_process(), "start_ticks": 1}
MANAGER = {"target": "t", "provider": "local", "priority": 0, "limits": {}}


SPEC = DeploymentSpec("p", "t", "local", {"a": ComponentSpec("a")})
CREATION = creation.Creation(
    SPEC,
    {"m": creation.ManagerRequest(SPEC, "")},
    Plan("t", "local", "0" * 64, ScalePlan({"a": 1})),
    "",
)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(ending, "WATCH_S", 0.3)

    def recorded_only(**_):
        return ClusterListing(tuple(status_of(d, time.time()) for d in all_directories()[0]))

    monkeypatch.setattr(ending, "list_clusters", recorded_only)
    return tmp_path


def recorded(name="one", *, scheduler=None, age_s=0.0, **more):
    """Put a cluster on record, whose scheduler wrote its status so many seconds ago."""
    made = ClusterDirectory.create(made_record(name, **{"stage": "made", "creator": GONE} | more))
    if scheduler is not None:
        made.write_scheduler({**scheduler, "address": "tls://127.0.0.1:1"})
        written_at = time.time() - age_s
        made.write_status({"written_at": written_at, "state": "running", "managers": []})
        os.utime(made.path / "record.json", (0, 0))
    return made


@pytest.fixture
def unanswered(monkeypatch):
    """Schedulers that do not answer."""

    def ask(*_, **__):
        raise ClusterError("no answer")

    for module in (control, resuming):
        monkeypatch.setattr(module, "ask", ask)


@pytest.fixture
def place():
    """A provider that runs programs as jobs, and the states of its jobs."""

    class Place:
        states: dict = {}  # noqa: RUF012
        deleted: list = []  # noqa: RUF012

        def services(self, spec=None):
            return self

        def state(self, cluster_id):
            return self.states

        def delete(self, cluster_id):
            self.deleted.append(cluster_id)
            self.states.clear()
            return []

    Place.states, Place.deleted = {}, []
    registry.register_provider("place", Place)
    yield Place
    registry.unregister_provider("place")


# On another machine -------------------------------------------------------------------------------


def test_a_scheduler_silent_for_long_on_another_machine_has_ended(unanswered, caplog):
    made = recorded(scheduler=ELSEWHERE, age_s=130)
    assert [(g.kind, g.name) for g in ending.prune(dry_run=True)] == [("failed", "one")]
    assert ending.end("one") is True
    assert not made.path.exists()
    assert "process 4711 on login1" in caplog.text
    assert "its other programs there cannot be stopped from here" in caplog.text


def test_a_scheduler_silent_for_a_moment_is_left_to_its_own_machine(unanswered):
    made = recorded(scheduler=ELSEWHERE, age_s=30)
    assert ending.prune(dry_run=True) == []
    with pytest.raises(ClusterError, match=r"process 4711 on login1: .* status 30.* ago") as e:
        ending.end("one")
    assert "run `scalable down one` there, or here" in e.value.hint
    assert status_of(made, time.time()).state == "unreachable"  # and not "deleting"


def test_one_that_answers_has_not_ended_although_it_writes_no_status(monkeypatch):
    made = recorded(scheduler=ELSEWHERE, age_s=1000)
    monkeypatch.setattr(control, "ask", lambda *_, **__: {})
    assert ending.why_ended(made) is None


def test_one_that_writes_has_not_ended_whatever_the_clocks_say(unanswered, monkeypatch):
    made = recorded(scheduler=ELSEWHERE, age_s=1000)

    def write(_):
        made.write_status({"written_at": time.time() - 999, "state": "running"})

    monkeypatch.setattr(time, "sleep", write)
    assert ending.why_ended(made) is None


def test_an_embedded_cluster_of_another_machine_ends_with_its_silence():
    made = recorded(embedded=True, creator=ELSEWHERE)
    made.write_status({"written_at": time.time() - 30, "state": "running"})
    with pytest.raises(ClusterError, match="runs in process 4711 on login1 of its user"):
        ending.end("one")
    made.write_status({"written_at": time.time() - 130, "state": "running"})
    os.utime(made.path / "record.json", (0, 0))
    assert [g.kind for g in ending.prune(dry_run=True)] == ["failed"]
    assert ending.end("one") is True


def test_one_that_a_process_of_another_machine_never_started_has_ended():
    now = datetime.now(UTC).isoformat(timespec="seconds")
    made = recorded(stage="creating", creator=ELSEWHERE, created_at=now)
    assert resuming.running_cluster("one").id == made.id
    made.write_record(replace(made.record(), created_at="2026-01-01T00:00:00+00:00"))
    assert resuming.running_cluster("one") is None


def test_a_clock_that_is_ahead_on_another_machine_does_not_keep_its_cluster(unanswered):
    made = recorded(scheduler=ELSEWHERE, age_s=-3600)
    assert ending.end("one") is True
    assert not made.path.exists()


def test_connecting_to_a_scheduler_that_listens_only_on_another_machine(monkeypatch):
    made = recorded(scheduler=ELSEWHERE)
    made.write_pem(*(3 * ["-----BEGIN"]))

    def refuse(*_, **__):
        raise OSError("timed out")

    monkeypatch.setattr(connecting, "install_loader", lambda: None)
    monkeypatch.setattr("scalable.client.client.ScalableClient", refuse)
    with pytest.raises(ClusterError, match="does not answer") as error:
        connecting.connect("one")
    assert "it listens only on the machine of process 4711 on login1" in error.value.hint


def test_a_job_that_left_the_queue_has_ended_at_once(place, unanswered):
    made = recorded(scheduler=ELSEWHERE, age_s=20, services="place", provider="place")
    made.write_services({"scheduler": {"service": "place"}})
    place.states["scheduler"] = "running"
    assert ending.prune(dry_run=True) == []
    place.states.clear()
    assert [g.kind for g in ending.prune(dry_run=True)] == ["failed"]
    assert resuming.running_cluster("one") is None
    assert place.deleted == [made.id]


def test_a_job_that_does_not_answer_is_ended_with_its_cluster(place, unanswered):
    made = recorded(scheduler=ELSEWHERE, age_s=20, services="place", provider="place")
    made.write_services({"scheduler": {"service": "place"}})
    place.states["scheduler"] = "running"
    assert ending.end("one") is True
    assert place.deleted == [made.id]


@pytest.fixture
def started(monkeypatch):
    """Managers that were started."""
    names = []
    monkeypatch.setattr(resuming, "stored_spec", lambda *_: None)
    monkeypatch.setattr(services, "start_manager", lambda _, name, __: names.append(name))
    return names


@pytest.mark.parametrize(("reports", "expected"), [
    ([("attached", 3.0), ("attached", 0.1)], []),
    ([("attached", 3.0), ("attached", 29.0), ("lost", 31.0)], ["m"]),
    ([("lost", 90.0)], ["m"]),
], ids=["it reports again", "it does not report again", "lost for long"])  # fmt: skip
def test_resume_asks_the_scheduler_about_a_manager_of_another_machine(
    place, monkeypatch, started, reports, expected
):
    rows = [{"id": "m", "state": state, "silent_s": silent_s} for state, silent_s in reports]
    monkeypatch.setattr(resuming, "ask", lambda *_: {"managers": [rows.pop(0)]})
    made = recorded(scheduler=ELSEWHERE, managers={"m": {**MANAGER, "provider": "place"}})
    made.write_services({"m": ELSEWHERE})
    assert resuming.restart_managers("one") == started == expected
    assert rows == []


@pytest.mark.parametrize(("rows", "runs", "expected"), [
    ([None, ("lost", 90.0), ("attached", -1.0)], True, True),
    ([None], False, False),
], ids=["it reports", "it exits"])  # fmt: skip
def test_a_restarted_manager_is_waited_for(monkeypatch, rows, runs, expected):
    """Until the scheduler lists it, unless it exits."""
    told = [[] if r is None else [{"id": "m", "state": r[0], "silent_s": r[1]}] for r in rows]
    monkeypatch.setattr(resuming, "ask", lambda *_: {"managers": told.pop(0)})
    monkeypatch.setattr(resuming, "REPORT_POLL_S", 0.01)
    monkeypatch.setattr(services, "is_running", lambda *_: runs)
    assert resuming.reports(recorded(), "m", restarted=True) is expected
    assert told == []


def test_a_manager_whose_workers_are_processes_elsewhere_is_not_resumed_here(monkeypatch):
    monkeypatch.setattr(resuming, "ask", lambda *_: {"managers": []})
    made = recorded(scheduler=ELSEWHERE, managers={"m": MANAGER})
    made.write_services({"m": ELSEWHERE})
    with pytest.raises(ClusterError, match="was process 4711 on login1 and has exited") as error:
        resuming.restart_managers("one")
    assert error.value.hint == f"run `scalable manager restart {made.id}` there"


# `down` -------------------------------------------------------------------------------------------


def test_down_of_a_stale_record_ends_its_manager_and_its_jobs(place, child):
    made = recorded(scheduler=GONE, managers={"m": {**MANAGER, "provider": "place"}})
    made.write_services({"m": identify(child.pid)})
    assert status_of(made, time.time()).state == "stale"
    assert ending.end("one") is True
    assert child.wait(10) != 0
    assert place.deleted == [made.id]


@pytest.mark.parametrize("read", range(1, 9))
@pytest.mark.parametrize("scheduler", [ELSEWHERE, None], ids=["elsewhere", "never started"])
def test_down_of_a_cluster_that_another_down_removes_meanwhile(
    read, scheduler, monkeypatch, unanswered
):
    made = recorded(scheduler=scheduler, age_s=130)
    reads, record = [], ClusterDirectory.record

    def counted(self):
        reads.append(self)
        if len(reads) == read:
            self.remove()
        return record(self)

    monkeypatch.setattr(ClusterDirectory, "record", counted)
    assert ending.end(made.id) in (True, False)
    assert not made.path.exists()


# `up` ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["creating", "made"])
def test_a_scheduler_that_died_while_starting_has_failed_and_the_name_is_free(stage):
    made = recorded(stage=stage, creator=identify_process())
    made.write_services({"scheduler": {**GONE, "pid": 2**22 + 1}})
    assert status_of(made, time.time()).state == "failed"
    assert resuming.running_cluster("one") is None
    assert not made.path.exists()


def test_a_scheduler_whose_job_died_while_starting_leaves_the_name_free(place):
    made = recorded(services="place", provider="place")
    made.write_services({"scheduler": {"service": "place"}})
    place.states["scheduler"] = "pending"
    assert resuming.running_cluster("one").id == made.id
    place.states.clear()
    assert resuming.running_cluster("one") is None


def test_a_cluster_in_the_making_is_left_alone(child):
    made = recorded(stage="creating", creator=identify_process())
    assert resuming.running_cluster("one").id == made.id
    made.write_services({"scheduler": identify(child.pid)})
    made.write_record(replace(made.record(), creator=GONE))
    assert resuming.running_cluster("one").id == made.id
    assert made.record().stage == "made"


def test_waiting_for_a_scheduler_does_not_end_with_its_managers(child, monkeypatch):
    """A cluster whose manager died while starting: `up` starts the manager again."""
    made = recorded(scheduler=identify(child.pid), managers={"m": MANAGER})
    made.write_services({"m": {**GONE, "pid": 2**22 + 1}})
    made.write_status({**made.status(), "state": "starting"})
    assert services.wait_until_ready(made, workers=False).state == "starting"
    with pytest.raises(ClusterError, match="manager-m of cluster 'one' exited: no output"):
        services.wait_until_ready(made)
    monkeypatch.setattr(services, "start_manager", lambda *_: None)
    monkeypatch.setattr(resuming, "stored_spec", lambda *_: None)
    assert resuming.restart_managers("one") == ["m"]


def test_a_job_that_leaves_the_queue_before_it_listens_is_not_waited_for(place, monkeypatch):
    monkeypatch.setattr(services, "JOBS_INTERVAL_S", 0.1)
    made = recorded(services="place", provider="place")
    made.write_services({"scheduler": {"service": "place"}})
    services.log_path(made, "scheduler").parent.mkdir()
    services.log_path(made, "scheduler").write_text("no such interpreter\n")
    with pytest.raises(
        ClusterError, match="scheduler of cluster 'one' exited: no such interpreter"
    ):
        services.wait_until_ready(made, timeout_s=30)


@pytest.mark.parametrize(("transient", "left"), [(False, []), (True, ["creating"])])
def test_a_cluster_whose_scheduler_is_refused_is_removed(monkeypatch, transient, left):
    """Otherwise its name would be taken as long as the process that asked for it lives."""

    def refuse(*_):
        raise ProviderError("invalid partition", transient=transient)

    monkeypatch.setattr(services, "start_scheduler", refuse)
    with pytest.raises(ProviderError, match="invalid partition"):
        creation.create(CREATION)
    assert [d.record().stage for d in all_directories()[0]] == left


def test_a_cluster_whose_manager_is_refused_keeps_its_scheduler(monkeypatch):
    def refuse(*_):
        raise ProviderError("too many jobs")

    monkeypatch.setattr(services, "start_scheduler", lambda *_: None)
    monkeypatch.setattr(services, "start_manager", refuse)
    with pytest.raises(ProviderError, match="too many jobs"):
        creation.create(CREATION)
    assert [d.record().stage for d in all_directories()[0]] == ["made"]


def test_a_state_directory_that_cannot_be_made_is_named(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    with pytest.raises(ClusterError, match="cannot be written to /proc/nowhere/scalable"):
        recorded()


# `prune` ------------------------------------------------------------------------------------------


def test_prune_goes_on_after_a_cluster_that_cannot_be_removed(place, monkeypatch):
    def refuse(self, cluster_id):
        raise ProviderError("the place is on fire")

    first = recorded("a", scheduler=GONE, provider="place")
    second = recorded("b", scheduler=GONE)
    monkeypatch.setattr(place, "delete", refuse)
    errors = {g.name: g.error for g in ending.prune(dry_run=False)}
    assert errors == {"a": "the place is on fire", "b": None}
    assert (first.path.exists(), second.path.exists()) == (True, False)


def test_a_dead_cluster_of_a_provider_that_is_not_known_here_is_removed(caplog):
    made = recorded("a", scheduler=GONE, provider="of-another-process")
    recorded("b", scheduler=GONE)
    assert [g.error for g in ending.prune(dry_run=False)] == [None, None]
    assert not made.path.exists()
    assert "provider 'of-another-process' of cluster" in caplog.text


# Users --------------------------------------------------------------------------------------------


def test_a_services_file_of_garbage_does_not_keep_the_cluster(child):
    made = recorded(scheduler=identify(child.pid))
    for text in (json.dumps({"scheduler": 7}), "[]", 100_000 * "["):
        (made.path / "services.json").write_text(text)
        (made.path / "services.json").chmod(0o600)
        assert services.identities(made)["scheduler"]["pid"] == child.pid
    assert ending.end("one") is True
    assert child.wait(10) != 0
