"""Detached clusters and sessions on a cloud, which stands in memory here."""

import dataclasses
import json
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from memory_cloud import MemoryCloud
from scalable.errors import NameTakenError, ProviderError
from scalable.model import ClusterRecord, ComponentSpec, DeploymentSpec
from scalable.model.codec import encode_spec
from scalable.protocol import credentials
from scalable.providers.remote.cloud import MACHINE_OF, MachineState
from scalable.providers.remote.cloud_place import CloudPlace, remains
from scalable.providers.remote.cloud_services import CloudServices
from scalable.records import ClusterDirectory
from scalable.records.directory import remembered
from scalable.records.packing import BEGUN

SPEC = DeploymentSpec(
    project_name="p",
    target_name="t",
    provider_name="aws",
    components={"a": ComponentSpec("a", memory="200M")},
    options={"image": "img"},
)


@pytest.fixture
def cloud(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return MemoryCloud()


@pytest.fixture
def place(cloud):
    return CloudPlace(lambda: cloud)


@pytest.fixture
def services(cloud):
    def inner(place):
        return {key: text for key, text in place.items() if key != "profile"}

    return CloudServices(SPEC, lambda _place, _spec: cloud, inner)


def made(name="n", **fields):
    record = ClusterRecord(
        id=str(uuid.uuid4()), name=name, provider="aws", target="t", project="p", owner="o",
        created_at=datetime.now(UTC).isoformat(), services="aws", remote=True,
        place={"region": "r", "profile": "mine"},
    )  # fmt: skip
    record = dataclasses.replace(record, **fields)
    return ClusterDirectory.create(record, spec=encode_spec(SPEC))


def start(services, directory, program="scheduler"):
    services.start(directory.path, program, ["python"], directory.path / "log")


def test_the_address_is_told_to_machines_of_the_cloud_alone(place, services, cloud, monkeypatch):
    cluster = made()
    start(services, cluster)
    cloud.become(MachineState.RUNNING, address="10.0.0.7")
    assert place.address(cluster.id) is None
    monkeypatch.setenv(MACHINE_OF, "aws")
    assert place.address(cluster.id) == "tls://10.0.0.7:8786"


def test_a_name_is_taken_while_its_cluster_lives(services, cloud, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    start(services, made())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "here"))
    with pytest.raises(NameTakenError, match="'n' already exists"):
        start(services, made())
    assert len(cloud.things) == 1
    cloud.become(MachineState.ENDED)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "third"))
    start(services, made())
    assert len(cloud.things) == 2


def test_of_two_creators_at_once_the_later_gives_way_although_the_earlier_is_slower(
    services, cloud, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    cloud.faults = [("run", ProviderError("throttled", transient=True))]
    with pytest.raises(ProviderError, match="throttled"):
        start(services, made())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "here"))
    later = made()
    with pytest.raises(NameTakenError, match="'n' already exists"):
        start(services, later)
    assert later.id in {m.marks["scalable-cluster"] for m in cloud.things.values()}
    assert (later.path / BEGUN).exists(), "its creator has to remove what it made there"


def test_no_capacity_for_the_scheduler_is_an_error_with_the_reason(services, cloud):
    cloud.room = 0
    with pytest.raises(ProviderError, match="no machine for the scheduler: no capacity in zones"):
        start(services, made())


def test_a_manager_that_is_started_again_replaces_its_machine(place, services, cloud):
    cluster = made(managers={"m": {"target": "t"}})
    start(services, cluster)
    cluster.write_request("m", "", encode_spec(SPEC))
    cluster.write_pem(*credentials.new_credentials())
    start(services, cluster, "m")
    start(services, cluster, "m")
    managers = [m for m in cloud.things.values() if m.marks["scalable-role"] == "manager"]
    assert sorted(m.state.value for m in managers) == ["ended", "pending"]
    assert place.programs(cluster.id)["m"].state == "pending"


def test_states_of_ended_programs_tell_the_end(place, services, cloud):
    cluster = made()
    start(services, cluster)
    cloud.become(MachineState.ENDED, exit_code=0)
    assert place.programs(cluster.id)["scheduler"].state == "completed"
    cloud.become(MachineState.ENDED, exit_code=1, reason="exit code 1")
    assert place.programs(cluster.id)["scheduler"].reason == "exit code 1"
    cloud.become(MachineState.ENDED, exit_code=0, from_outside=True, reason="taken back")
    assert place.programs(cluster.id)["scheduler"].state == "failed"
    cloud.things.clear()
    assert place.programs(cluster.id)["scheduler"].state == "pending", "it may not be there yet"
    cloud.texts = {
        name: dataclasses.replace(its, files=aged(its.files)) for name, its in cloud.texts.items()
    }
    assert place.programs(cluster.id)["scheduler"].state == "failed"
    assert place.programs(str(uuid.uuid4())) == {}


def test_a_scheduler_that_never_boots_has_failed_after_a_while(place, services, cloud, monkeypatch):
    cluster = made()
    start(services, cluster)
    cloud.become(MachineState.RUNNING, made_at=1.0, address="127.0.0.1")
    assert place.programs(cluster.id)["scheduler"].state == "running", "it has said something"

    async def nothing(machine, since):
        return "", ""

    monkeypatch.setattr(cloud, "output", nothing)
    told = place.programs(cluster.id)["scheduler"]
    assert (told.state, told.reason) == (
        "failed",
        "machine m-0 runs, but its program has never started",
    )
    cloud.become(MachineState.RUNNING, made_at=time.time())
    assert place.programs(cluster.id)["scheduler"].state == "running", "it may still boot"


def aged(files):
    record = json.loads(files["record.json"])
    record["created_at"] = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    return {**files, "record.json": json.dumps(record)}


def test_the_files_go_last_so_that_what_is_left_can_be_found(place, services, cloud):
    cluster = made()
    start(services, cluster)
    cloud.faults = [("clean", ProviderError("in use", transient=True))]
    with pytest.raises(ProviderError, match="in use"):
        place.delete(cluster.id)
    assert list(place.clusters()) == [cluster.id]
    place.delete(cluster.id)
    assert place.clusters() == {}


def test_the_files_of_the_scheduler_go_after_those_of_the_others(place, services, cloud):
    cluster = made(managers={"m": {"target": "t"}})
    start(services, cluster)
    cluster.write_request("m", "", encode_spec(SPEC))
    cluster.write_pem(*credentials.new_credentials())
    start(services, cluster, "m")
    left = []
    delete = cloud.delete_files

    async def watched(marks):
        gone = await delete(marks)
        left.append([its.marks["scalable-role"] for its in cloud.texts.values()])
        return gone

    cloud.delete_files = watched
    place.delete(cluster.id)
    assert ["scheduler"] in left
    assert cloud.texts == {}


def test_sessions_are_no_clusters_and_their_remains_are_found_when_they_are_old(place, cloud):
    session = ClusterRecord(
        id="0123456789", name="p-t-012345", provider="aws", target="t", project="p", owner="",
        created_at=datetime.now(UTC).isoformat(), remote=True,
    )  # fmt: skip
    text = {"record.json": json.dumps(session.to_dict())}
    marks = {"scalable-cluster": session.id, "scalable-owner": "ann", "scalable-role": "scheduler"}

    def put(files):
        import asyncio

        asyncio.run(cloud.put_files("s", marks, files))

    put(text)
    assert place.clusters() == {}
    assert remains(lambda: cloud) == {}, "its machine may not be there yet"
    put(aged(text))
    assert list(remains(lambda: cloud)) == [session.id]
    place.delete(session.id)
    assert remains(lambda: cloud) == {}
    assert cloud.texts == {}


def test_a_name_is_free_three_minutes_after_its_creator_was_killed(
    place, services, cloud, monkeypatch, tmp_path
):
    killed = made(created_at=(datetime.now(UTC) - timedelta(seconds=200)).isoformat())
    start(services, killed)
    cloud.things.clear()  # it was killed before it requested the machine
    assert place.programs(killed.id)["scheduler"].state == "failed"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    start(services, made())
    assert len(cloud.things) == 1


def test_a_start_during_which_its_cluster_is_ended_leaves_no_machine(services, cloud):
    cluster = made()
    run = cloud.run

    async def ended_meanwhile(requests):
        answers = await run(requests)
        cluster.remove()
        return answers

    cloud.run = ended_meanwhile
    with pytest.raises(ProviderError, match="was stopped by another process"):
        start(services, cluster)
    assert [m.state for m in cloud.things.values()] == [MachineState.ENDED]
    assert cloud.texts == {}


def test_what_has_no_files_is_found_too(cloud, services):
    cloud.left = {"x": "roles"}
    cluster = made()
    start(services, cluster)
    (name,) = cloud.things
    cloud.become(MachineState.RUNNING, name, made_at=time.time() - 3600)
    assert remains(lambda: cloud) == {"x": "roles"}
    cloud.texts.clear()
    assert remains(lambda: cloud)[cluster.id].startswith("machines without the files")
    cloud.become(MachineState.RUNNING, name, made_at=time.time() - 60)
    assert remains(lambda: cloud) == {"x": "roles"}


def test_places_are_remembered_for_the_next_search(cloud, services):
    start(services, made())
    assert remembered("aws") == [{"region": "r", "profile": "mine"}]
    assert remembered("gcp") == []
