"""A unit is stopped without draining only after the scheduler has ruled out that it gets work."""

import logging

import pytest
from house import in_house

from scalable.errors import ProviderError
from scalable.manager.launcher import Observation, UnitState


async def one_running(house, **options):
    """Have a pool of one unit, whose workers are connected; return its name."""
    house.inventory.want("quick", 1)
    await house.until(lambda: house.quick.launched)
    (name,) = house.quick.launched
    house.quick.connect(name, **options)
    await house.until(lambda: house.inventory.status()["quick"].running == 1)
    return name


async def drained_and_stopped(house, name):
    """Wait until a unit is drained, end its calls, and wait until the unit is stopped."""
    drained = ("drain", house.quick.workers_of(name))
    await house.until(lambda: drained in house.link.told)
    await house.passes()
    assert house.quick.stopped == []
    for worker in house.quick.workers_of(name):
        house.link.workers.pop(worker, None)
    await house.until(lambda: house.quick.stopped == [name])
    assert house.quick.killed == []


@pytest.mark.parametrize("connected_before", [False, True])
@in_house()
async def test_a_unit_that_connects_between_the_decision_and_the_stop_is_drained(
    house, connected_before
):
    house.inventory.want("quick", 1)
    await house.until(lambda: house.quick.launched)
    (name,) = house.quick.launched
    if connected_before:  # as a Nanny's worker that is restarted just now
        house.quick.connect(name)
        await house.until(lambda: house.inventory.status()["quick"].running == 1)
        house.link.workers.clear()
        await house.passes()
    house.link.before_withholding = lambda: house.quick.connect(name, processing=2)
    house.inventory.want("quick", 0)
    await drained_and_stopped(house, name)
    assert house.link.withheld == {name}  # in the end


@in_house(start_timeout=0.1)
async def test_a_late_unit_that_connects_while_its_output_is_read_is_drained(house):
    house.quick.reads.clear()
    house.inventory.want("quick", 1)
    await house.until(lambda: len(house.quick.launched) == 2)
    late, successor = house.quick.launched
    house.quick.connect(late, successor, processing=1)
    house.quick.reads.set()
    await drained_and_stopped(house, late)
    assert successor in house.inventory.existing()


@in_house()
async def test_units_of_a_refused_request_that_have_connected_work_on(house):
    async def launch(entries):
        name, *_ = house.quick.launched or entries
        house.quick.observed[name] = Observation(UnitState.RUNNING)
        house.quick.connect(name, processing=1)
        house.quick.launched.append(name)
        raise ProviderError("the other process cannot be started", transient=True)

    house.quick.launch = launch
    house.inventory.want("quick", 2)
    await house.until(lambda: house.quick.stopped)
    await house.passes()
    assert house.quick.launched[0] not in house.quick.stopped
    assert house.quick.killed == []
    assert house.inventory.status()["quick"].running == 1


def test_a_group_that_has_left_in_part_when_it_is_wanted_again_is_drained_and_replaced(caplog):
    async def scenario(house):
        house.quick.group = ("-0", "-1")
        house.inventory.pools["quick"].template = {"group": house.quick.group}
        name = await one_running(house, processing=1)
        house.inventory.want("quick", 0)
        await house.until(lambda: any(request == "drain" for request, _ in house.link.told))
        del house.link.workers[f"{name}-0"]
        house.inventory.want("quick", 1)
        await house.until(lambda: len(house.quick.launched) == 2)
        await drained_and_stopped(house, name)

    with caplog.at_level(logging.WARNING, "scalable"):
        in_house(scenario)
    assert not caplog.records


def test_a_unit_that_has_left_when_it_is_wanted_again_is_replaced_under_a_new_name(caplog):
    async def scenario(house):
        name = await one_running(house)
        house.link.before_withholding = lambda: house.inventory.want("quick", 1)
        house.inventory.want("quick", 0)
        await house.until(lambda: len(house.quick.launched) == 2)
        await house.until(lambda: house.quick.stopped == [name])
        await house.passes()
        assert len(set(house.quick.launched)) == 2

    with caplog.at_level(logging.WARNING, "scalable"):
        in_house(scenario)
    assert not caplog.records


@in_house()
async def test_a_worker_that_the_scheduler_drains_is_replaced_at_once_and_stopped_when_it_has_left(
    house,
):
    name = await one_running(house, processing=1)
    await house.link.drain({name: "asked for"})
    view = house.link.workers[name]
    house.link.workers[name] = type(view)(view.address, processing=1, drain="draining")
    await house.until(lambda: len(house.quick.launched) == 2)
    assert house.inventory.status()["quick"].wanted == 1
    await drained_and_stopped(house, name)
    assert house.inventory.pools["quick"].lost == 0
