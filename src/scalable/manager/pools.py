"""Pools of a worker manager, and the counts of their units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalable.files import read_secrets
from scalable.manager.launcher import Launcher, UnitName
from scalable.manager.units import Phase, Unit, backoff_s
from scalable.model import ComponentSpec, names
from scalable.model.clusters import PoolStatus


@dataclass
class Pool:
    """One pool of a manager: the workers of one tag, and the state of their starts."""

    #: Name of the component, or :data:`UNTAGGED` for workers without a tag.
    tag: str
    launcher: Launcher
    #: Entry of the worker specification for new units. None if the pool cannot grow.
    template: Mapping[str, Any] | None = None
    #: Number of tasks that one worker runs at once.
    slots: int = 1
    #: Failed starts since a unit last connected.
    failures: int = 0
    #: Delays by :meth:`pause` since a unit last connected.
    interruptions: int = 0
    #: Monotonic time before which no unit is started.
    retry_at: float = 0.0
    #: Reason why the pool was given up. It is retried when it is scaled.
    degraded: str | None = None
    #: True if the pool is in a crash loop whose reason is still being read.
    giving_up: bool = False
    #: Seconds for which a unit may live. None for no limit.
    walltime_s: float | None = None
    #: Expected seconds of the longest task, 0 if unknown.
    task_s: float = 0.0
    #: Seconds from request to connection of the unit that connected last.
    wait_s: float = 30.0
    #: Monotonic time of the first temporary refusal since the last accepted request.
    refused_since: float | None = None
    #: Message of the last temporary refusal.
    refusal: str | None = None
    #: Maximum number of units in the next request, found by halving refused requests.
    room: int | None = None
    #: True if the last request contained only some of the due units, because of ``room``.
    cut: bool = False
    #: Returns name and entry of a new unit, instead of the template and a generated name.
    new_entry: Callable[[], Mapping[UnitName, Mapping[str, Any]]] | None = None
    #: ``cpus``, ``memory`` and ``gpus`` of one worker, as far as known.
    shape: Mapping[str, Any] = field(default_factory=dict)
    #: Reason why a unit failed to start, until one connects.
    start_failure: str | None = None
    #: Monotonic time before which the output of its starting units is not read again.
    read_at: float = 0.0
    lost: int = 0
    #: Name and reason of the last lost unit.
    last_loss: str | None = None

    def may_start(self, now: float) -> bool:
        return self.degraded is None and not self.giving_up and now >= self.retry_at

    def start_anew(self) -> None:
        """Clear failures and refusals, so that units are started again."""
        self.degraded, self.retry_at = None, 0.0
        self.giving_up = False
        self.failures = self.interruptions = 0
        self.refused_since = self.room = self.refusal = None

    def connected(self) -> None:
        """Clear the failures after a unit has connected."""
        self.failures = self.interruptions = 0
        self.start_failure = None

    def back_off(self, now: float) -> None:
        """Count a failed start, and delay the next start longer with each failure."""
        self.failures += 1
        self.retry_at = now + backoff_s(self.failures)

    def pause(self, now: float) -> None:
        """Delay the next start after a refusal or an external stop, without degrading the pool."""
        if now >= self.retry_at:
            self.interruptions += 1
            self.retry_at = now + backoff_s(self.interruptions)

    def refused_for(self, now: float, refusal: str) -> float:
        """Record a temporary refusal, and return the seconds since the first one."""
        self.refused_since = self.refused_since or now
        self.refusal = refusal
        return now - self.refused_since

    def limited(self, now: float, count: int, refusal: str) -> bool:
        """Record a lack of capacity and halve the next request. Return whether to log the lack."""
        self.refused_since = None
        self.room = max(1, count // 2)
        if count > 1:
            return False
        first, self.refusal = self.refusal is None, refusal
        self.pause(now)
        return first

    def accepted(self, count: int) -> None:
        """Record an accepted request."""
        self.refused_since = None
        if self.cut:
            self.room = 2 * count
        else:
            self.room = self.refusal = None


def status_of(pool: Pool, wanted: Sequence[UnitName], units: Iterable[Unit]) -> PoolStatus:
    """Return a pool's status from the names of its desired units, and from all pools' units."""
    own = {unit.name: unit for unit in units if unit.pool == pool.tag}
    phases = Counter(unit.phase for unit in own.values())
    waiting = [unit.waiting for unit in own.values() if unit.waiting]
    failed = f"the last start failed: {pool.start_failure}" if pool.start_failure else None
    suspended = sum(unit.suspended and unit.phase is Phase.RUNNING for unit in own.values())
    return PoolStatus(
        wanted=len(wanted),
        running=phases[Phase.RUNNING] - suspended,
        launching=phases[Phase.LAUNCHING],
        draining=phases[Phase.DRAINING],
        failed=sum(name not in own for name in wanted) if pool.degraded else 0,
        slots=pool.slots,
        reason=pool.degraded,
        waiting=waiting[-1] if waiting else pool.refusal or failed,
        lost=pool.lost,
        last_loss=pool.last_loss,
        suspended=suspended,
    )


# Site ---------------------------------------------------------------------------------------------

#: Directory of the workers' configurations, separate from the manager's and cluster's files.
COMPONENTS = "components"


@dataclass(frozen=True)
class ManagerSite:
    """Identity, scheduler and directories for the workers of one manager."""

    #: UUID of the cluster. Every unit is labelled with it, so that it can be found again.
    cluster_id: str
    #: Id of the manager within its cluster, kept when the manager is restarted.
    manager: str
    #: Makes the unit names of the current manager process unique on the scheduler.
    incarnation: str
    #: Address that workers connect to.
    scheduler: str
    #: The cluster's ``distributed.Security``, or None.
    security: Any
    #: Private directory of the manager, for configuration files with credentials.
    directory: Path
    #: Directory for the workers' output. None to keep it only while they run.
    log_dir: Path | None
    #: Directories that workers add to ``sys.path`` to import the workflow's modules.
    sys_path: tuple[str, ...]
    #: True if workers outlive the manager's process.
    detached: bool = False
    #: Secret values by tag and variable that the creator of the cluster has read. None if this
    #: process reads them.
    secrets: Mapping[str, Mapping[str, str]] | None = None
    #: Name of the cluster, for people.
    name: str = ""

    def secrets_of(self, component: ComponentSpec, directory: Path | None) -> dict[str, str]:
        """Map environment variables of a component's workers to their secret values."""
        if self.secrets is not None:
            return dict(self.secrets.get(component.name, {}))
        return read_secrets(component.secrets, directory)


def config_path(directory: Path, tag: str) -> Path:
    """Return the path of a tag's worker configuration. Raise ClusterError for an unsafe tag."""
    return directory / COMPONENTS / f"{names.FILE_NAME.require(tag)}.json"
