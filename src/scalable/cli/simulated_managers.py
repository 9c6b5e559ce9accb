"""``scalable simulate --manager``: workers from several managers, divided by each policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from scalable.units import parse_duration

if TYPE_CHECKING:
    from scalable.scaling.pool_policy import PoolPolicy
    from scalable.scaling.tiers import AllocationPolicy
    from scalable.simulation.managers import SimulatedManager
    from scalable.simulation.reference import Reference
    from scalable.simulation.result import SimulationResult

HEADER = ("policy", "managers", "time", "cost", "changes", "most workers", "beside clairvoyant")
#: Policies that divide workers among managers, as `managers: {policy: ...}` names them.
ALLOCATIONS = ("waterfall", "cheapest")
_FORM = "name=startup,price,maximum[,failing]"
_HOUR_S = 3600.0


class ManagerOption(click.ParamType["SimulatedManager"]):
    """A simulated manager, such as ``hpc=10min,0.05,64`` or ``cloud=1min,0.15,64,failing``."""

    name = "manager"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> SimulatedManager:
        """Parse it."""
        from scalable.simulation.managers import SimulatedManager
        from scalable.simulation.result import Startup

        name, separator, terms = str(value).partition("=")
        parts = [part.strip() for part in terms.split(",")]
        if not separator or not name.strip() or len(parts) not in (3, 4):
            self.fail(f"{value!r} is not of the form {_FORM}", param, ctx)
        if len(parts) == 4 and parts[3] != "failing":
            self.fail(f"{value!r}: {parts[3]!r} is not 'failing'", param, ctx)
        try:
            startup_s, price, maximum = parse_duration(parts[0]), float(parts[1]), int(parts[2])
        except ValueError as error:
            self.fail(f"{value!r} is not of the form {_FORM}: {error}", param, ctx)
        if not 0 <= price < math.inf or maximum < 1:
            message = f"{value!r}: the price must not be negative, the maximum at least 1"
            self.fail(message, param, ctx)
        return SimulatedManager(
            name.strip(),
            Startup(startup_s, startup_s),
            price / _HOUR_S,
            maximum,
            delivers=0 if len(parts) == 4 else None,
        )


def prioritized(
    managers: Sequence[SimulatedManager], billed_s: float | None, billed_most_s: float
) -> list[SimulatedManager]:
    """Return managers with priorities in the order in which they were given.

    Parameters
    ----------
    managers
        The managers.
    billed_s
        Billed part of the start of a worker; None for all of it up to ``billed_most_s``.
    billed_most_s
        Maximum billed part of a start.

    Raises
    ------
    click.UsageError
        If two managers have the same name.
    """
    names = [manager.name for manager in managers]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise click.UsageError(f"--manager {twice} is given twice; names have to differ")
    most = billed_most_s if billed_s is None else billed_s
    return [
        replace(m, priority=i, startup=replace(m.startup, billed_s=min(m.startup.delay_s, most)))
        for i, m in enumerate(managers)
    ]


def allocation(name: str, spill_after_s: float, deadline_s: float | None) -> AllocationPolicy:
    """Return a new policy that divides workers among managers."""
    from scalable.scaling.cheapest_policy import Cheapest
    from scalable.scaling.waterfall import Waterfall

    return Cheapest(spill_after_s, deadline_s) if name == "cheapest" else Waterfall(spill_after_s)


def sized(make: Callable[[], PoolPolicy], deadline_s: float | None) -> PoolPolicy:
    """Return a new policy of a pool; one that knows deadlines is told the deadline."""
    from scalable.scaling.policy import PoolScaler

    policy = make()
    if isinstance(policy, PoolScaler):
        policy.deadline_s = deadline_s
    return policy


def row(
    names: tuple[str, str], outcome: SimulationResult, best: Reference, deadline_s: float | None
) -> tuple[str, ...]:
    """Return a row of the table for people."""
    from scalable.units import format_duration

    late = " (late)" if deadline_s is not None and outcome.time_s > deadline_s else ""
    score = score_of(outcome, best)
    return (
        *names,
        format_duration(outcome.time_s) + late,
        f"{outcome.cost:.4g}",
        str(len(outcome.changes)),
        str(outcome.most_workers),
        "-" if score is None else f"{score:.2f}",
    )


def score_of(outcome: SimulationResult, best: Reference) -> float | None:
    """Return the root of time times cost beside that of the reference; None without a cost."""
    return math.sqrt(outcome.time_s * outcome.cost / best.product) if best.product else None


def described(managers: Sequence[SimulatedManager]) -> list[Mapping[str, Any]]:
    """Return managers as values for programs; prices are for a worker and an hour."""
    return [
        {
            "name": manager.name,
            "startup_s": manager.startup.delay_s,
            "billed_startup_s": manager.startup.billed_s,
            "price": manager.price * _HOUR_S,
            "maximum": manager.maximum,
            "failing": manager.delivers == 0,
        }
        for manager in managers
    ]
