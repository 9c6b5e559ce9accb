"""A slow place delays only its own units, and a silent scheduler loses none of them."""

import asyncio
import time

import pytest
from house import in_house

from scalable.errors import ProviderError
from scalable.manager import reconciler as module
from scalable.manager.launcher import LimitReachedError, Observation, UnitState
from scalable.manager.units import CRASH_LOOP_STARTS, WorkerView


@in_house()
async def test_another_pool_is_launched_scaled_and_replaced_during_a_slow_launch(house):
    house.slow.answers.clear()
    house.inventory.want("slow", 2)
    await house.until(lambda: house.slow.batches == 1)
    house.inventory.want("quick", 2)
    await house.until(lambda: len(house.quick.launched) == 2)
    house.quick.connect()
    await house.until(lambda: house.inventory.status()["quick"].running == 2)
    victim = house.quick.launched[0]
    house.quick.kill(victim)
    await house.until(lambda: len(house.quick.launched) == 3)
    await house.until(lambda: victim in house.quick.stopped)
    house.quick.connect()
    house.inventory.want("quick", 0)
    await house.until(lambda: len(house.quick.stopped) == 3)
    assert house.slow.launched == []
    assert house.inventory.status()["slow"].launching == 2


@pytest.mark.parametrize(("used_s", "pause_s"), [(0, 0.5), (0.05, 0.5), (0.15, 1.5), (9, 2)])
def test_passes_take_a_tenth_of_the_time_where_they_take_long(used_s, pause_s):
    assert module.pause_s(used_s) == pytest.approx(pause_s)


@in_house()
async def test_a_pool_has_one_batch_in_flight_and_its_names_stay_taken(house):
    house.slow.answers.clear()
    house.inventory.want("slow", 2)
    await house.until(lambda: house.slow.batches == 1)
    house.inventory.want("slow", 5)
    await house.passes()
    assert house.slow.batches == 1
    house.slow.answers.set()
    await house.until(lambda: len(house.slow.launched) == 5)
    assert house.slow.batches == 2
    assert len(set(house.slow.launched)) == 5


@in_house()
async def test_a_unit_that_is_unwanted_during_its_launch_is_stopped_after_it(house):
    house.slow.answers.clear()
    house.inventory.want("slow", 2)
    await house.until(lambda: house.slow.batches == 1)
    house.inventory.want("slow", 0)
    await house.passes()
    assert house.slow.stopped == []
    house.slow.answers.set()
    await house.until(lambda: len(house.slow.stopped) == 2)
    assert sorted(house.slow.stopped) == sorted(house.slow.launched)
    await house.until(lambda: not house.inventory.existing())


@in_house()
async def test_a_slow_log_delays_no_replacement(house):
    house.slow.reads.clear()
    house.inventory.want("slow", 1)
    house.inventory.want("quick", 1)
    await house.until(lambda: house.slow.launched and house.quick.launched)
    house.slow.connect()
    house.quick.connect()
    await house.until(lambda: house.inventory.status()["slow"].running == 1)
    lost = house.slow.launched[0]
    house.slow.kill(lost)
    await house.until(lambda: house.slow.read == [lost])
    await house.until(lambda: len(house.slow.launched) == 2)
    house.inventory.want("quick", 3)
    await house.until(lambda: len(house.quick.launched) == 3)
    # Its place may forget the output of a unit that is stopped.
    assert house.slow.stopped == []
    house.slow.reads.set()
    await house.until(lambda: house.slow.stopped == [lost])


@in_house()
async def test_a_crash_loop_ends_at_once_and_is_shown_with_the_last_output(house, monkeypatch):
    monkeypatch.setattr("scalable.manager.pools.backoff_s", lambda failures: 0.0)
    house.slow.reads.clear()
    house.inventory.want("slow", 1)
    for count in range(1, 6):
        await house.until(lambda: len(house.slow.launched) == count)  # noqa: B023
        house.slow.kill(house.slow.launched[-1])
    await house.until(lambda: len(house.slow.read) == 5)
    await house.passes()
    assert len(house.slow.launched) == 5
    assert house.inventory.pools["slow"].degraded is None
    house.slow.reads.set()
    await house.until(lambda: house.inventory.pools["slow"].degraded is not None)
    reason = house.inventory.pools["slow"].degraded
    assert "5 starts failed" in reason
    assert "the output of slow-c1" in reason


@pytest.mark.parametrize("error", [ProviderError("no such account"), RuntimeError("a defect")])
@in_house()
async def test_a_refusal_degrades_its_own_pool_alone(house, error):
    house.slow.error = error
    house.inventory.want("slow", 2)
    house.inventory.want("quick", 1)
    await house.until(lambda: house.inventory.pools["slow"].degraded is not None)
    await house.until(lambda: house.quick.launched)
    assert house.inventory.pools["quick"].degraded is None
    await house.until(lambda: sorted(house.slow.stopped) == ["slow-c1-0", "slow-c1-1"])
    house.slow.error = None
    house.inventory.want("slow", 2)
    await house.until(lambda: len(house.slow.launched) == 2)


@in_house()
async def test_aligning_waits_for_the_answers_and_raises_a_refusal(house):
    house.inventory.want("quick", 2)
    await house.reconciler.align()
    assert len(house.quick.launched) == 2
    house.slow.error = ProviderError("no such account")
    house.slow.answers.clear()
    house.inventory.want("slow", 1)
    await house.until(lambda: house.slow.batches == 1)
    aligning = asyncio.create_task(house.reconciler.align())
    await house.passes()
    assert not aligning.done()
    house.slow.answers.set()
    with pytest.raises(ProviderError, match="no such account"):
        await aligning


@in_house()
async def test_closing_cancels_a_launch_that_is_not_answered(house, monkeypatch):
    monkeypatch.setattr(module, "LAUNCH_CLOSE_TIMEOUT_S", 0.2)
    house.slow.answers.clear()
    house.inventory.want("slow", 1)
    house.inventory.want("quick", 1)
    await house.until(lambda: house.slow.batches == 1 and house.quick.launched)
    began = time.monotonic()
    await house.reconciler.close()
    assert time.monotonic() - began < 3
    assert house.quick.stopped == ["quick-c1-0"]
    assert house.slow.stopped == ["slow-c1-0"]  # it may be there all the same


@in_house()
async def test_units_are_launched_although_the_scheduler_missed_their_announcement(house):
    house.link.silent.add("allow_work")
    house.inventory.want("quick", 2)
    await house.until(lambda: len(house.quick.launched) == 2)
    assert house.link.silent == set()
    requested = [event for event in house.events if event.get("event") == "requested"]
    assert len(requested) == 2


@pytest.mark.parametrize("silent", [(), ("resume",)])
@in_house()
async def test_a_draining_unit_that_is_wanted_again_works_again(house, silent):
    house.inventory.want("quick", 1)
    await house.until(lambda: house.quick.launched)
    (name,) = house.quick.launched
    house.link.workers[name] = WorkerView(f"tcp://{name}", processing=1)
    await house.until(lambda: house.inventory.status()["quick"].running == 1)
    house.inventory.want("quick", 0)
    await house.until(lambda: ("drain", [name]) in house.link.told)
    house.link.silent.update(silent)
    house.inventory.want("quick", 1)
    await house.until(lambda: ("resume", [name]) in house.link.told)
    await house.until(lambda: house.inventory.status()["quick"].running == 1)
    assert house.link.silent == set()


async def one_connected(house):
    """Return the name of the pool's only unit, once its worker is connected."""
    house.inventory.want("quick", 1)
    await house.until(lambda: house.quick.launched)
    (name,) = house.quick.launched
    house.quick.connect()
    await house.until(lambda: house.inventory.status()["quick"].running == 1)
    return name


@in_house()
async def test_a_loss_from_outside_is_excused_although_the_scheduler_missed_it_at_first(house):
    name = await one_connected(house)
    house.link.silent.add("excuse_losses")
    house.link.workers.clear()
    house.quick.observed[name] = Observation(UnitState.ENDED, "preempted", from_outside=True)
    await house.until(lambda: ("excuse_losses", [name]) in house.link.told)
    await house.passes()
    assert house.link.told.count(("excuse_losses", [name])) == 1


@in_house()
async def test_a_loss_from_outside_is_excused_while_the_unit_drains(house):
    name = await one_connected(house)
    house.inventory.want("quick", 0)
    await house.until(lambda: house.inventory.status()["quick"].draining == 1)
    house.link.workers.clear()
    house.quick.observed[name] = Observation(UnitState.ENDED, "preempted", from_outside=True)
    await house.until(lambda: ("excuse_losses", [name]) in house.link.told)


@in_house()
async def test_a_chosen_name_is_used_again_when_its_unit_is_gone(house):
    house.quick.reads.clear()
    house.inventory.spec["mine"] = {"pool": "quick"}
    await house.until(lambda: house.quick.launched == ["mine"])
    house.quick.connect("mine")
    await house.passes()
    house.quick.kill("mine")
    await house.until(lambda: house.quick.read == ["mine"])
    await house.passes()
    assert house.quick.launched == ["mine"]
    house.quick.reads.set()
    await house.until(lambda: house.quick.launched == ["mine", "mine"])
    assert house.quick.stopped == ["mine"]


@in_house()
async def test_a_unit_is_stopped_although_its_output_cannot_be_read(house):
    async def logs(name):
        raise RuntimeError("a defect")

    house.quick.logs = logs
    name = await one_connected(house)
    house.quick.kill(name)
    await house.until(lambda: house.quick.stopped == [name])
    await house.until(lambda: len(house.quick.launched) == 2)


@in_house()
async def test_a_unit_that_was_lost_just_before_the_end_is_told_as_lost(house):
    name = await one_connected(house)
    house.quick.reads.clear()
    house.quick.kill(name)
    await house.until(lambda: house.quick.read)
    await house.reconciler.close()
    removed = [row for row in house.events if row.get("event") == "removed"]
    assert [row["reason"] for row in removed if row["worker"] == name] == ["lost: it was killed"]


@in_house()
async def test_a_crash_loop_is_shown_although_no_output_can_be_read(house):
    async def logs(name):
        raise RuntimeError("a defect")

    house.quick.logs, pool = logs, house.inventory.pools["quick"]
    house.inventory.want("quick", 1)
    await house.until(lambda: house.quick.launched)
    await house.passes()
    pool.failures = CRASH_LOOP_STARTS
    house.quick.kill(house.quick.launched[0])
    await house.until(lambda: pool.degraded is not None)
    assert "it was killed" in pool.degraded


@in_house()
async def test_of_too_many_units_those_are_started_that_the_place_has_room_for(house):
    place, room = house.quick, 5
    requests = []

    async def launch(entries):
        requests.append(len(entries))
        if len(place.observed) + len(entries) > room:
            raise LimitReachedError("the place is full")
        place.observed |= dict.fromkeys(entries, Observation(UnitState.RUNNING))

    place.launch = launch
    house.inventory.want("quick", 8)
    pool = house.inventory.pools["quick"]
    await house.until(lambda: len(place.observed) == 5 and pool.refusal is not None)
    assert requests[:3] == [8, 4, 4]
    assert house.inventory.status()["quick"].waiting == "the place is full"
    requests.clear()

    def again():
        pool.retry_at = 0.0  # without the pause
        house.reconciler.wake()

    await house.until(lambda: again() or len(requests) > 7)
    assert set(requests) == {1}  # one at a time, and the pool is not given up
    assert (pool.failures, pool.degraded) == (0, None)
    room = 8
    await house.until(lambda: again() or len(place.observed) == 8)
    await house.until(lambda: house.inventory.status()["quick"].waiting is None)


@pytest.mark.parametrize("seen", [True, False])
@in_house()
async def test_losses_with_tasks_stop_no_pool(house, seen):
    losses = 2 * CRASH_LOOP_STARTS
    house.inventory.want("quick", 1)
    for number in range(losses):
        await house.until(lambda number=number: len(house.quick.launched) == number + 1)
        name = house.quick.launched[-1]
        if seen:  # otherwise its first task ends it between two passes
            house.quick.connect(name)
            await house.until(lambda: house.inventory.status()["quick"].running == 1)
        house.link.lost_at_work[name] = f"tcp://{name}"
        house.quick.kill(name)
    await house.until(lambda: len(house.quick.launched) == losses + 1)
    assert house.inventory.status()["quick"].reason is None
    # Without tasks, five starts are the end.
    for number in range(CRASH_LOOP_STARTS):
        await house.until(lambda n=number: len(house.quick.launched) == losses + n + 1)
        name = house.quick.launched[-1]
        house.quick.connect(name)
        await house.until(lambda: house.inventory.status()["quick"].running == 1)
        house.quick.kill(name)
    await house.until(lambda: house.inventory.status()["quick"].reason)
