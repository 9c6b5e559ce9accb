"""Units with a walltime: the end of their work, and the request for their successors."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from scalable.manager.decisions import Decision, Margin
from scalable.manager.inventory import Inventory
from scalable.manager.pools import Pool

logger = logging.getLogger("scalable.manager")

#: Seconds that a worker needs to hand over its results before its walltime ends.
HAND_OVER_S = 10.0


def margin_for(task_s: float, wait_s: float, walltime_s: float) -> Margin:
    """Return the margin of a pool's units.

    Parameters
    ----------
    task_s
        Expected running time of the longest call, 0 where unknown.
    wait_s
        Seconds between request and connection of the unit that connected last.
    walltime_s
        Length of a unit's life.

    Notes
    -----
    A fifth is added for calls that take longer than expected, and ten seconds for handing over.
    Half of the walltime is always left for work.
    """
    stop = min(1.2 * task_s + HAND_OVER_S, walltime_s / 2)
    return Margin(stop_s=stop, renew_s=stop + min(wait_s, walltime_s / 4))


def margins_of(pools: Mapping[str, Pool], longest_s: float) -> dict[str, Margin]:
    """Return tag -> margin, of the pools whose units have a walltime.

    Parameters
    ----------
    pools
        Tag -> pool.
    longest_s
        Mean running time of the longest kind of call so far, for pools that expect none.
    """
    return {
        tag: margin_for(pool.task_s or longest_s, pool.wait_s, pool.walltime_s)
        for tag, pool in pools.items()
        if pool.walltime_s is not None
    }


def renew(inventory: Inventory, decision: Decision) -> None:
    """Request successors of units whose walltime is nearly over, and end the latter in time."""
    for name in (*decision.renew, *decision.leave):
        unit = inventory.units.get(name)
        if unit is not None and not unit.renewed:
            logger.debug("unit %s is renewed: its walltime ends soon", name)
            inventory.wanted.renew(unit, inventory.pools[unit.pool])
    for name in decision.leave:
        if name in inventory.units:
            inventory.units[name].leaving = "its walltime is nearly over"
            inventory.wanted.remove(name)
