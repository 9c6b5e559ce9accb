"""Launcher of workers on a cloud's machines. A unit is one worker of a machine."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from scalable.errors import ProviderError
from scalable.manager.launcher import ChargedMachine, Observation, UnitName, UnitState
from scalable.model import ComponentSpec
from scalable.protocol.operations import OUT_OF_MEMORY
from scalable.providers.remote.cloud import (
    NAME,
    TAG,
    WORKERS,
    Cloud,
    Machine,
    MachineRequest,
    MachineState,
    Refusal,
)
from scalable.providers.remote.machines import MachineFrame, packed_units
from scalable.units import parse_duration

logger = logging.getLogger("scalable.providers.remote")

#: Seconds between two requests for the machines while some start or stop, and otherwise.
BUSY_POLL_S, REST_POLL_S = 2.0, 15.0
#: Seconds before the second request for a refused machine, and the longest pause.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 120.0
#: Seconds after which a started machine counts as lost if it is not reported.
UNSEEN_S = 90.0
STOP_TIMEOUT_S = 240.0
LOG_BYTES = 2**16
_STATES = {
    MachineState.PENDING: UnitState.PENDING,
    MachineState.RUNNING: UnitState.RUNNING,
    MachineState.ENDING: UnitState.RUNNING,
    MachineState.ENDED: UnitState.ENDED,
}


@dataclass(eq=False)
class _Placed:
    """Machine that was requested for some units."""

    #: The latest request.
    request: MachineRequest
    component: ComponentSpec
    #: Units that have not been stopped.
    left: set[str]
    #: Time of the latest request, in monotonic seconds.
    asked_at: float
    #: The machine as it was last reported.
    seen: Machine | None = None
    #: Reason of the latest refusal, or None if the latest request was accepted.
    refused: str | None = None
    #: Number of requests.
    attempt: int = 1
    #: True if the latest request has no answer yet. It may have started a machine.
    unanswered: bool = False
    #: True if the cloud does not report the machine any more.
    lost: bool = False
    #: Number of units that fit on the machine, which is charged for all of them.
    holds: int = 1


class MachineLauncher:
    """Launcher of units on machines. One request polls all machines.
    A refused spot machine is immediately requested at the on-demand price.
    """

    def __init__(
        self,
        cloud: Cloud,
        frame: MachineFrame,
        manager: str,
        components: Mapping[str, ComponentSpec],
    ) -> None:
        #: Called when a unit has ended.
        self.on_change: Callable[[], object] = lambda: None
        self._cloud = cloud
        self.frame = frame
        self._manager = manager
        self._components = components
        self._machines: dict[str, _Placed] = {}  # by the name of the first request
        self._of_unit: dict[str, _Placed] = {}
        self._following: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._soon = asyncio.Event()
        self._all_ends = False

    # Launching ------------------------------------------------------------------------------------

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        """Request machines for units, and return when the cloud has answered."""
        new = [str(unit) for unit in entries if str(unit) not in self._of_unit]
        if not new:
            return
        component = self._components[next(iter(entries.values()))["pool"]]
        placed = [
            self._place(component, units) for units in packed_units(new, self._holds(component))
        ]
        self._follow()
        # After an error some machines may exist: the units are tracked until they are stopped.
        await self._request(placed)

    def _holds(self, component: ComponentSpec) -> int:
        return max(1, self._cloud.units_on(component))

    def _place(self, component: ComponentSpec, units: tuple[str, ...]) -> _Placed:
        request = self.frame.worker_request(
            self._manager, component, units, units[0], spot=self._takes_spot(component.name)
        )
        placed = _Placed(request, component, set(units), time.monotonic())
        placed.holds = self._holds(component)
        self._machines[request.name] = placed
        self._of_unit.update(dict.fromkeys(units, placed))
        return placed

    def _takes_spot(self, tag: str) -> bool:
        """Return whether the next machine of a tag is a spot machine, to keep ``spot_share``."""
        own = [its for its in self._machines.values() if its.component.name == tag and its.left]
        spot = sum(its.request.spot for its in own)
        return self._cloud.spot_share > 0 and spot < self._cloud.spot_share * (len(own) + 1)

    async def _request(self, placed: Sequence[_Placed]) -> None:
        """Request machines, and repeat refused requests in a background task."""
        waiting = await self._ask_for(placed)
        for its in waiting:
            logger.debug("machine %s waits for capacity: %s", its.request.name, its.refused)
        if waiting:
            task = asyncio.ensure_future(self._ask_again(waiting))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask_for(self, placed: Sequence[_Placed]) -> list[_Placed]:
        """Request machines. Request refused spot machines on demand. Return those refused again."""
        refused = await self._ask_once(placed)
        dearer = [its for its in refused if its.request.spot]
        for its in dearer:
            logger.debug("no spot machine for %s: %s", its.request.name, its.refused)
            self._renew(its, spot=False)
        if dearer:
            await self._ask_once(dearer)
        return [its for its in refused if its.refused is not None]

    async def _ask_once(self, placed: Sequence[_Placed]) -> list[_Placed]:
        """Request machines, and return those refused for lack of capacity."""
        for its in placed:
            its.unanswered = True
        answers = await self._cloud.run([its.request for its in placed])
        refused = []
        for its in placed:
            answer = answers[its.request.name]
            its.asked_at, its.unanswered = time.monotonic(), False
            if isinstance(answer, Refusal):
                its.refused = answer.reason
                refused.append(its)
            else:
                its.refused, its.seen = None, answer
        self._soon.set()
        return refused

    async def _ask_again(self, waiting: Sequence[_Placed]) -> None:
        """Repeat requests until each is accepted or its units are stopped."""
        pause = FIRST_PAUSE_S
        left = list(waiting)
        while left:
            await asyncio.sleep(pause * random.uniform(0.7, 1.0))  # noqa: S311 - no secret
            pause = min(LONGEST_PAUSE_S, pause * 1.6)
            left = [its for its in left if its.left and its.refused is not None]
            for its in left:
                # A request without an answer keeps its name: its machine may exist already.
                if not its.unanswered:
                    self._renew(its, spot=self._takes_spot(its.component.name))
            if not left:
                return
            try:
                left = await self._ask_for(left)
            except ProviderError as error:
                logger.warning("could not request the machines again: %s", error)
                for its in left:
                    if its.unanswered:
                        its.refused = str(error)

    def _renew(self, its: _Placed, *, spot: bool) -> None:
        """Replace the request with one whose name has never been used."""
        its.attempt += 1
        units = tuple(unit for unit in its.request.units if unit in its.left)
        name = f"{units[0]}.{its.attempt}"
        its.request = self.frame.worker_request(
            self._manager, its.component, units, name, spot=spot
        )

    # Observing ------------------------------------------------------------------------------------

    def _follow(self) -> None:
        if self._following is None:
            self._following = asyncio.ensure_future(self._follow_all())

    async def _follow_all(self) -> None:
        while True:
            self._soon.clear()
            try:
                await self._look()
            except ProviderError as error:
                logger.log(
                    logging.DEBUG if error.transient else logging.WARNING,
                    "could not list the machines in the cloud: %s",
                    error,
                )
            await self._pause(BUSY_POLL_S)
            if not self._is_busy():
                await self._pause(REST_POLL_S - BUSY_POLL_S, or_soon=True)

    async def _pause(self, seconds: float, *, or_soon: bool = False) -> None:
        if not or_soon:
            await asyncio.sleep(seconds)
            return
        # Not `wait_for`: in Python 3.11 it loses a cancellation that comes with the event.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._soon.wait()

    def _is_busy(self) -> bool:
        return any(
            its.refused is None
            and (its.seen is None or its.seen.state in (MachineState.PENDING, MachineState.ENDING))
            for its in self._machines.values()
        )

    async def _look(self) -> list[Machine]:
        found = await self._cloud.machines(self.frame.marks(WORKERS, self._manager))
        by_name = {machine.marks[NAME]: machine for machine in found}
        ended = False
        for its in self._machines.values():
            before = _state(its)
            machine = by_name.get(its.request.name)
            if machine is not None:
                its.seen, its.lost = machine, False
            elif its.refused is None and time.monotonic() - its.asked_at > UNSEEN_S:
                its.lost = True
            ended |= before is not UnitState.ENDED and _state(its) is UnitState.ENDED
        if ended:
            self.on_change()
        return found

    async def adopt(self) -> dict[UnitName, str]:
        adopted: dict[UnitName, str] = {}
        for machine in await self._cloud.machines(self.frame.marks(WORKERS, self._manager)):
            component = self._components.get(machine.marks.get(TAG, ""))
            gone = machine.state in (MachineState.ENDING, MachineState.ENDED)
            if component is None or gone or any(u in self._of_unit for u in machine.units):
                continue
            name = machine.marks[NAME]
            request = self.frame.worker_request(
                self._manager, component, machine.units, name, spot=machine.spot
            )
            its = _Placed(request, component, set(machine.units), time.monotonic(), machine)
            its.holds = self._holds(component)
            self._machines[name] = its
            self._of_unit.update(dict.fromkeys(machine.units, its))
            adopted.update(dict.fromkeys(machine.units, component.name))
        self._follow()
        return adopted

    def observe(self) -> dict[UnitName, Observation]:
        limit = self.frame.options.get("start_timeout")
        within_s = None if limit is None else parse_duration(limit)
        return {
            unit: dataclasses.replace(_observation(its), starts_within_s=within_s)
            for unit, its in list(self._of_unit.items())
        }

    def look_soon(self) -> None:
        self._soon.set()

    # Stopping -------------------------------------------------------------------------------------

    def all_ends(self) -> None:
        """Make :meth:`stop` do nothing in the cloud, since all machines will stop together."""
        self._all_ends = True

    async def stop(self, names: Sequence[UnitName]) -> None:
        """Stop units. A machine is stopped with its last unit. Wait until all have stopped."""
        placed = {id(its): its for name in names if (its := self._of_unit.get(str(name)))}
        whole: list[tuple[_Placed, set[str]]] = []
        parts: list[tuple[_Placed, set[str]]] = []
        for its in placed.values():
            stopped = its.left.intersection(map(str, names))
            its.left -= stopped
            (parts if its.left else whole).append((its, stopped))
        if not self._all_ends:
            await self._stop(whole, parts)
        for name in names:
            self._of_unit.pop(str(name), None)
        gone = [its for its, _ in whole]
        self._forget(gone)

    async def _stop(
        self, whole: Sequence[tuple[_Placed, set[str]]], parts: Sequence[tuple[_Placed, set[str]]]
    ) -> None:
        wanted = {its.request.name for its, _ in whole}
        found = await self._look()
        await self._cloud.stop([m for m in found if m.marks[NAME] in wanted and _is_there(m)])
        for its, units in parts:
            if its.seen is not None and _is_there(its.seen):
                await self._cloud.stop_units(its.seen, sorted(units))
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while left := [m for m in found if m.marks[NAME] in wanted and _is_there(m, ending=True)]:
            if time.monotonic() > deadline:
                shown = ", ".join(sorted(machine.id for machine in left))
                raise ProviderError(
                    f"{shown} were requested to stop but still exist after {STOP_TIMEOUT_S:g} s"
                )
            await asyncio.sleep(BUSY_POLL_S)
            found = await self._look()

    def _forget(self, placed: Iterable[_Placed]) -> None:
        for its in placed:
            for unit in its.request.units:
                if self._of_unit.get(unit) is its:
                    del self._of_unit[unit]
            for name in [name for name, other in self._machines.items() if other is its]:
                del self._machines[name]

    async def logs(self, name: UnitName) -> str:
        its = self._of_unit.get(str(name))
        if its is None or its.seen is None:
            return ""
        text, _ = await self._cloud.output(its.seen, "")
        return text[-LOG_BYTES:]

    async def close(self) -> None:
        """Stop polling and repeating requests, without stopping machines."""
        tasks = [*self._asking] + ([self._following] if self._following else [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._following = None


def _is_there(machine: Machine, *, ending: bool = False) -> bool:
    return machine.state in (MachineState.PENDING, MachineState.RUNNING) or (
        ending and machine.state is MachineState.ENDING
    )


def _state(its: _Placed) -> UnitState:
    return _observation(its).state


def _observation(its: _Placed) -> Observation:
    if its.refused is not None:
        return Observation(UnitState.PENDING, its.refused)
    if its.lost:
        return Observation(UnitState.ENDED, "the cloud no longer lists the machine")
    machine = its.seen
    if machine is None:
        return Observation(UnitState.PENDING, "requested")
    return Observation(
        _STATES[machine.state],
        machine.reason,
        from_outside=machine.from_outside,
        out_of_memory=machine.out_of_memory or machine.exit_code == OUT_OF_MEMORY,
        machine=ChargedMachine(machine.id, its.holds) if its.holds > 1 else None,
    )
