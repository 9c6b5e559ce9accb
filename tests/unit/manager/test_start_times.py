"""The start times of a unit that is replaced again and again."""

from scalable.manager.inventory import Inventory
from scalable.manager.launcher import SUCCESSOR
from scalable.manager.pools import Pool
from scalable.manager.units import (
    CRASH_LOOP_STARTS,
    CRASH_LOOP_WINDOW_S,
    Phase,
    Unit,
    WorkerView,
    in_crash_loop,
    refresh,
)


def test_a_unit_that_is_replaced_for_weeks_knows_few_of_the_starts():
    inventory = Inventory("c1", lambda: None)
    inventory.add_pool(Pool("a", None, {}))
    inventory.want("a", 1)
    for start in range(1000):
        inventory.take_due((), float(start))
        ((_, unit),) = inventory.units.items()
        inventory.units.clear()
        inventory.replace(unit)
    assert CRASH_LOOP_STARTS <= len(unit.starts) < 20
    assert in_crash_loop(unit.starts, 1000.0)
    assert not in_crash_loop(unit.starts, 1000.0 + CRASH_LOOP_WINDOW_S)


def test_a_unit_whose_nanny_starts_its_worker_anew_for_weeks_knows_few_of_the_starts():
    unit = Unit("x", "a", ("x",), 0.0)
    for start in range(1000):
        refresh([unit], {"x": WorkerView(f"tcp://x:{start}")}, float(start))
    assert CRASH_LOOP_STARTS <= len(unit.starts) < 20
    assert unit.starts[-1] == 999.0


def test_successors_are_requested_first_where_a_backend_takes_one_unit_at_a_time():
    inventory = Inventory("c1", lambda: None)
    inventory.add_pool(Pool("a", None, {}))
    inventory.want("a", 1)
    inventory.take_due((), 0.0)
    (unit,) = inventory.units.values()
    inventory.want("a", 3)
    inventory.renew(unit)
    inventory.pools["a"].room = 1
    due = inventory.take_due((), 1.0)
    assert [entry[SUCCESSOR] for entry in due["a"].values()] == [True]


def renewed():
    """Return an inventory whose only unit has a successor, and the name and the unit."""
    inventory = Inventory("c1", lambda: None)
    inventory.add_pool(Pool("a", None, {}))
    inventory.want("a", 1)
    inventory.take_due((), 0.0)
    ((name, unit),) = inventory.units.items()
    inventory.renew(unit)
    return inventory, name, unit


def test_a_lost_unit_is_replaced_by_its_successor_alone():
    inventory, name, _ = renewed()
    (successor,) = inventory.names("a")
    inventory.replace(inventory.units.pop(name))
    assert list(inventory.spec) == [successor] != [name]


def test_a_unit_near_the_end_of_its_walltime_is_not_desired_again():
    inventory, name, unit = renewed()
    inventory.remove(name)
    unit.phase = Phase.DRAINING
    inventory.want("a", 2)
    assert len(inventory.names("a")) == 2
    assert name not in inventory.spec
