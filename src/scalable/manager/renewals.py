"""Renewal of units that will not last: their successors are requested before they leave."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from scalable.manager.decisions import WALLTIME, Decision, Margin
from scalable.manager.inventory import Inventory
from scalable.manager.launcher import UnitName
from scalable.manager.pools import Pool
from scalable.manager.units import Unit
from scalable.units import format_duration

logger = logging.getLogger("scalable.manager")

#: Seconds that a worker needs to hand over its results before its walltime ends.
HAND_OVER_S = 10.0


def margin_for(task_s: float, wait_s: float, walltime_s: float) -> Margin:
    """Return how long before the walltime a pool's units are renewed and stopped.

    Parameters
    ----------
    task_s
        Expected running time of the longest call in seconds; 0 if unknown.
    wait_s
        Seconds from request to connection of the unit that connected last.
    walltime_s
        Seconds for which a unit may live.

    Notes
    -----
    A fifth of ``task_s`` is added for calls that take longer than expected, and ten seconds for
    moving results to other workers. A unit works for at least half of its walltime.
    """
    stop = min(1.2 * task_s + HAND_OVER_S, walltime_s / 2)
    return Margin(stop_s=stop, renew_s=stop + min(wait_s, walltime_s / 4))


def margins_of(pools: Mapping[str, Pool], longest_s: float) -> dict[str, Margin]:
    """Return tag -> margin for the pools whose units have a walltime.

    Parameters
    ----------
    pools
        Tag -> pool.
    longest_s
        Mean running time in seconds of the slowest kind of call so far. It is used for pools
        without an expected running time.
    """
    return {
        tag: margin_for(pool.task_s or longest_s, pool.wait_s, pool.walltime_s)
        for tag, pool in pools.items()
        if pool.walltime_s is not None
    }


def drain_reasons(units: Mapping[UnitName, Unit], decision: Decision) -> dict[str, str]:
    """Return name of the worker -> reason, for the units that are emptied now."""
    reasons: dict[str, str] = {}
    for name in decision.drain:
        if name in units:
            reason, left_s = units[name].leaving, decision.left_s.get(name)
            if reason == WALLTIME and left_s is not None:
                reason = f"its walltime ends in {format_duration(left_s)}"
            reasons |= dict.fromkeys(units[name].worker_names, reason)
    return reasons


def renew(inventory: Inventory, decision: Decision) -> None:
    """Request successors for units that will not last; those that must leave are wanted no more."""
    for name in (*decision.renew, *decision.leave):
        unit = inventory.units.get(name)
        if unit is not None and not unit.renewed:
            logger.debug("unit %s is renewed", name)
            inventory.wanted.renew(unit, inventory.pools[unit.pool])
    for name in decision.taken_back:
        unit = inventory.units.get(name)
        if unit is not None:
            pool, reason = inventory.pools[unit.pool], decision.leave[name]
            logger.warning("worker %s is replaced: %s", name, reason)
            pool.lost += 1
            pool.last_loss = f"{name}: {reason}"
    for name, reason in decision.leave.items():
        if name in inventory.units:
            inventory.units[name].leaving = reason
            inventory.wanted.remove(name)
