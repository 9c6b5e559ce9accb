"""Workers on the machines of a cloud, which stands in memory here."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_cloud import MemoryCloud, transient
from scalable.errors import ProviderError
from scalable.manager.launcher import UnitState
from scalable.model import ComponentSpec
from scalable.providers.remote import machine_launcher
from scalable.providers.remote.cloud import NAME, TAG, MachineState
from scalable.providers.remote.machine_launcher import MachineLauncher
from scalable.providers.remote.machines import MachineFrame, packed_units
from unit.played import decorator_of

FRAME = MachineFrame("c1", "ann", {"image": "img"})
COMPONENTS = {tag: ComponentSpec(name=tag, cpus=2, memory="2G") for tag in ("crops", "water")}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(machine_launcher, "BUSY_POLL_S", 0.01)
    monkeypatch.setattr(machine_launcher, "REST_POLL_S", 0.02)
    monkeypatch.setattr(machine_launcher, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(machine_launcher, "LONGEST_PAUSE_S", 0.05)


def play(scenario, **options):
    """Run a coroutine function with a cloud and a launcher."""

    async def whole():
        cloud = MemoryCloud(**options)
        launcher = MachineLauncher(cloud, FRAME, "m", COMPONENTS)
        try:
            await asyncio.wait_for(scenario(cloud, launcher), 30)
        finally:
            await launcher.close()

    asyncio.run(whole())


with_cloud = decorator_of(play, 2)


def entries(*units, pool="crops"):
    return {unit: {"pool": pool} for unit in units}


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


@with_cloud()
async def test_workers_have_the_start_timeout_of_the_target_to_connect(cloud, launcher):
    launcher.frame = MachineFrame("c1", "ann", {"image": "img", "start_timeout": "7m"})
    await launcher.launch(entries("a"))
    assert launcher.observe()["a"].starts_within_s == 420


@with_cloud(room=2)
async def test_a_refused_machine_waits_with_its_reason_and_comes_when_there_is_room(
    cloud, launcher
):
    await launcher.launch(entries("a", "b", "c"))
    seen = launcher.observe()
    assert seen["c"].state is UnitState.PENDING
    assert seen["c"].reason == "no capacity in zones a and b"
    await launcher.stop(["a"])
    await until(lambda: "c" in str(sorted(cloud.things)))
    await until(lambda: launcher.observe()["c"].reason is None)
    assert len([m for m in cloud.things.values() if "c" in m.units]) == 1
    cloud.room = 0
    await launcher.launch(entries("d"))
    await launcher.stop(["d"])
    cloud.room = 9
    await asyncio.sleep(0.2)
    assert not [m for m in cloud.things.values() if "d" in m.units], "nobody wants it any more"


@with_cloud(spot_share=0.5)
async def test_spot_machines_take_their_share_and_others_come_where_there_are_none(cloud, launcher):
    await launcher.launch(entries(*map(str, range(8))))
    assert sum(m.spot for m in cloud.things.values()) == 4
    cloud.spot_room = 0
    await launcher.launch(entries("x", "y"))
    assert all(o.reason is None for o in launcher.observe().values())
    assert len(cloud.things) == 10
    assert sum(m.spot for m in cloud.things.values()) == 4


@with_cloud(spot_share=1.0, spot_room=0, room=0)
async def test_a_repeated_request_for_a_spot_machine_also_takes_the_usual_price(cloud, launcher):
    await launcher.launch(entries("a"))
    assert launcher.observe()["a"].reason == "no capacity in zones a and b"
    cloud.room = 1
    await until(lambda: launcher.observe()["a"].reason is None)
    assert [m.spot for m in cloud.things.values()] == [False]


@with_cloud(room=0)
async def test_a_repeated_request_without_an_answer_starts_no_second_machine(cloud, launcher):
    await launcher.launch(entries("a"))
    cloud.room, cloud.faults = 9, [("answer", transient("connection lost"))]
    await until(lambda: cloud.things and launcher.observe()["a"].reason is None)
    assert len(cloud.things) == 1


@with_cloud(per_machine=2)
async def test_a_machine_ends_with_the_last_of_its_units(cloud, launcher):
    await launcher.launch(entries("a", "b", "c"))
    assert [m.units for m in cloud.things.values()] == [("a", "b"), ("c",)]
    cloud.become(MachineState.RUNNING)
    await launcher.stop(["a"])
    assert cloud.stopped == ["a"]
    assert cloud.things["a"].state is MachineState.RUNNING
    assert set(launcher.observe()) == {"b", "c"}
    await launcher.stop(["b"])
    assert cloud.things["a"].state is MachineState.ENDED
    assert cloud.things["c"].state is MachineState.RUNNING


@with_cloud()
async def test_what_was_started_before_the_answer_was_lost_is_ended_by_a_stop(cloud, launcher):
    cloud.faults = [("answer", transient("connection lost"))]
    with pytest.raises(ProviderError, match="connection lost"):
        await launcher.launch(entries("a"))
    assert cloud.things["a"].state is MachineState.PENDING
    await launcher.stop(["a"])
    assert cloud.things["a"].state is MachineState.ENDED


@with_cloud()
async def test_a_launch_that_is_cancelled_leaves_nothing_after_its_stop(cloud, launcher):
    async def slow(requests, begin=cloud.run):
        await begin(requests)
        await asyncio.Event().wait()

    cloud.run = slow
    launching = asyncio.ensure_future(launcher.launch(entries("a")))
    await until(lambda: cloud.things)
    launching.cancel()
    await asyncio.wait([launching])
    await launcher.stop(["a"])
    assert cloud.things["a"].state is MachineState.ENDED


@with_cloud()
async def test_a_machine_that_is_not_reported_any_more_is_lost(cloud, launcher, monkeypatch):
    monkeypatch.setattr(machine_launcher, "UNSEEN_S", 0.1)
    await launcher.launch(entries("a"))
    cloud.things.clear()
    await until(lambda: launcher.observe()["a"].state is UnitState.ENDED)
    assert "no longer lists" in launcher.observe()["a"].reason


@with_cloud()
async def test_one_question_reports_all_machines_however_many_there_are(cloud, launcher):
    await launcher.launch(entries(*map(str, range(200))))
    cloud.become(MachineState.RUNNING)
    before = cloud.calls.count("machines")
    await until(lambda: launcher.observe()["199"].state is UnitState.RUNNING)
    assert cloud.calls.count("machines") - before <= 2


@with_cloud()
async def test_a_question_that_fails_keeps_what_is_known(cloud, launcher):
    await launcher.launch(entries("a"))
    cloud.become(MachineState.RUNNING)
    await until(lambda: launcher.observe()["a"].state is UnitState.RUNNING)
    cloud.faults = [("machines", transient())] * 3
    await until(lambda: not cloud.faults)
    assert launcher.observe()["a"].state is UnitState.RUNNING


@given(units=st.integers(1, 50), per_machine=st.integers(1, 9))
def test_every_unit_is_on_one_machine_and_only_the_last_machine_has_room(units, per_machine):
    names = [f"u{i}" for i in range(units)]
    packed = list(packed_units(names, per_machine))
    assert [unit for its in packed for unit in its] == names
    assert all(len(its) == per_machine for its in packed[:-1])


def test_marks_name_what_a_machine_is_for():
    request = FRAME.worker_request("m", COMPONENTS["crops"], ("a",), "a", spot=False)
    assert request.marks[NAME] == "a"
    assert request.marks[TAG] == "crops"
    assert request.files == "c1-workers-m-crops"
    assert request.program == ("workers", "--scheduler=", "a")
