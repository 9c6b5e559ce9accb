"""Places where calls were measured: target, provider and kind of machine. No I/O.

Running times of different places are not mixed; those of another place are transferred with a
learned speed ratio (see :mod:`scalable.planning.transfer`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scalable.planning.transfer import ERROR_OF_PLACE, Task, Transfer, transfers
from scalable.planning.work import MOSTLY
from scalable.spec import DeploymentSpec
from scalable.telemetry import CallRecord, EarlierRun


class Place(NamedTuple):
    """Target, provider and kind of machine; the latter two are empty if they are unknown."""

    target: str
    provider: str
    machine: str


@dataclass(frozen=True)
class Here:
    """Place for which a plan is made.

    Attributes
    ----------
    target, provider
        Target and provider.
    machines
        Kinds of machines; empty if none is known.
    """

    target: str
    provider: str
    machines: Collection[str] = ()

    def is_target_of(self, run: EarlierRun) -> bool:
        """Return whether a run was on the target, on whatever machines."""
        return run.target == self.target and run.provider in ("", self.provider)

    def has(self, run: EarlierRun, call: CallRecord) -> bool:
        """Return whether a call of a run was made here.

        Older records do not tell the kind of machine. Their calls count as made on this one.
        """
        return self.is_target_of(run) and self._has_machine(call.machine)

    def _has_machine(self, kind: str) -> bool:
        return not kind or not self.machines or kind in self.machines

    def calls_of(self, run: EarlierRun) -> tuple[CallRecord, ...]:
        """Return the calls of a run that were made here."""
        if not self.is_target_of(run):
            return ()
        return tuple(call for call in run.calls if self._has_machine(call.machine))

    def is_place_of(self, run: EarlierRun) -> bool:
        """Return whether at least half of a run's calls were made here."""
        return 2 * len(self.calls_of(run)) >= len(run.calls)

    def name_of(self, place: Place | None) -> str:
        """Return the name of a place in a plan: its target, with what distinguishes it from here.

        Parameters
        ----------
        place
            Another place; None for this one.
        """
        if place is None or place.target != self.target:
            return self.target if place is None else place.target
        if place.provider not in ("", self.provider):
            return f"{place.target} ({place.provider})"
        return f"{place.target} on {place.machine or 'other machines'}"


@dataclass(frozen=True)
class PlacedCalls:
    """Calls of earlier runs, the latest first, each with its place; None stands for here."""

    here: Here
    placed: Sequence[tuple[Place | None, CallRecord]]

    @classmethod
    def of(
        cls, spec: DeploymentSpec, history: Sequence[EarlierRun], machine: str = ""
    ) -> PlacedCalls:
        """Return the calls of earlier runs.

        Parameters
        ----------
        spec
            The request.
        history
            Earlier runs, the latest first.
        machine
            Kind of machine that the target has; empty for the kinds that it had last.
        """
        target = Here(spec.target_name, spec.provider_name)
        runs = [run for run in history if target.is_target_of(run)]
        machines = {machine} if machine else next(filter(None, map(machines_of, runs)), set())
        here = Here(target.target, target.provider, frozenset(machines))
        placed = [
            (None if here.has(run, call) else Place(run.target, run.provider, call.machine), call)
            for run in history
            for call in reversed(run.calls)
        ]
        return cls(here, placed)

    def transfers(
        self, error_of_place: float = ERROR_OF_PLACE
    ) -> dict[Task, tuple[Place, Transfer]]:
        """Return task -> the other place from which its running times are taken, and how.

        If several places measured a task, the one with the smallest error is used, and of these the
        one with the most calls.

        Parameters
        ----------
        error_of_place
            See :func:`scalable.planning.transfer.transfers`.
        """
        elsewhere: dict[Place, list[CallRecord]] = defaultdict(list)
        for place, call in self.placed:
            if place is not None:
                elsewhere[place].append(call)
        here = lengths_of(call for place, call in self.placed if place is None)
        found: dict[Task, tuple[Place, Transfer]] = {}
        best: dict[Task, tuple[float, int]] = {}
        for place, calls in elsewhere.items():
            there = lengths_of(calls)
            for task, transfer in transfers(here, there, error_of_place).items():
                rank = (transfer.error, -len(there[task]))
                if task not in best or rank < best[task]:
                    best[task], found[task] = rank, (place, transfer)
        return found


def machines_of(run: EarlierRun) -> set[str]:
    """Return the kinds of machines on which a run made its calls, as far as they are known."""
    return {call.machine for call in run.calls if call.machine}


def moved_runs(history: Sequence[EarlierRun]) -> list[EarlierRun]:
    """Return the runs whose plans took their running times from other places.

    These are plans that say so, and plans for a target whose workers then ran on machines of
    other kinds than those of the run before.

    Parameters
    ----------
    history
        Earlier runs, the latest first.
    """
    last: dict[tuple[str, str], set[str]] = {}
    found = []
    for run in reversed(history):
        kinds, before = machines_of(run), last.get((run.target, run.provider), set())
        if run.transferred > MOSTLY or (kinds and before and not kinds & before):
            found.append(run)
        if kinds:
            last[run.target, run.provider] = kinds
    return found[::-1]


def lengths_of(calls: Iterable[CallRecord]) -> dict[Task, list[float]]:
    """Return task -> running times of its calls in seconds."""
    found: dict[Task, list[float]] = defaultdict(list)
    for call in calls:
        found[call.tag, call.task].append(call.duration_s)
    return found
