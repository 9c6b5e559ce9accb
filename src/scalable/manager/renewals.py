"""Renewal of units that reach their walltime or leave: successors are requested in advance."""

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

#: Seconds that a worker needs to hand over its results before its walltime is over.
HAND_OVER_S = 10.0


def margin_for(task_s: float, wait_s: float, walltime_s: float) -> Margin:
    """Return how long before the walltime a pool's units are renewed and stopped.
    A fifth of ``task_s`` (0 if unknown) is added for slow tasks, and 10 s for moving results. A
    unit works for at least half of its walltime. ``wait_s`` is the last unit's time from request to
    connection.
    """
    stop = min(1.2 * task_s + HAND_OVER_S, walltime_s / 2)
    return Margin(stop_s=stop, renew_s=stop + min(wait_s, walltime_s / 4))


def margins_of(pools: Mapping[str, Pool], longest_s: float) -> dict[str, Margin]:
    """Map the pools whose units have a walltime to their margins.
    ``longest_s``, the mean duration of the slowest kind of task so far, replaces a missing
    expectation.
    """
    return {
        tag: margin_for(pool.task_s or longest_s, pool.wait_s, pool.walltime_s)
        for tag, pool in pools.items()
        if pool.walltime_s is not None
    }


def drain_reasons(units: Mapping[UnitName, Unit], decision: Decision) -> dict[str, str]:
    """Map the names of the workers to drain now to the reason."""
    reasons: dict[str, str] = {}
    for name in decision.drain:
        if name in units:
            reason, left_s = units[name].leaving, decision.left_s.get(name)
            if reason == WALLTIME and left_s is not None:
                reason = f"its walltime ends in {format_duration(left_s)}"
            reasons |= dict.fromkeys(units[name].worker_names, reason)
    return reasons


def renew(inventory: Inventory, decision: Decision) -> None:
    """Request successors for leaving units, and make those that must leave undesired."""
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
