"""Records and status of clusters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

#: States of a cluster.
STATES = (
    "creating",
    "starting",
    "running",
    "degraded",
    "unmanaged",
    "failed",
    "unreachable",
    "stale",
    "deleting",
)


_TEXTS = (
    "id",
    "name",
    "provider",
    "target",
    "project",
    "owner",
    "created_at",
    "stage",
    "services",
    "manager_policy",
)
_MAPS = ("creator", "managers", "wanted", "tasks", "labels", "adaptive", "expectations", "place")
_LIMITS = (
    "max_workers",
    "idle_timeout_s",
    "time_to_live_s",
    "manager_grace_s",
    "spill_after_s",
    "abandoned_after_s",
)
_Kind = type | tuple[type, ...]
_NUMBER = (int, float)
#: Types that readers of a record rely on.
_KINDS: Mapping[str, _Kind] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(_MAPS, Mapping),
    **dict.fromkeys(_LIMITS, (*_NUMBER, type(None))),
}
#: Types of the values of a record's mappings.
_KINDS_OF_VALUES: Mapping[str, _Kind] = {"wanted": int, "tasks": str, "managers": Mapping}
#: Entries of a manager: type, and the value of a record that does not say.
_MANAGER: Mapping[str, tuple[_Kind, Any]] = {
    "target": (str, None),
    "provider": (str, None),
    "priority": (int, 0),
    "limits": (Mapping, {}),
    "scheduler_address": ((str, type(None)), None),
}
#: Entries of a pool's status whose type is not that of a number.
_POOL: Mapping[str, _Kind] = dict.fromkeys(("reason", "waiting", "last_loss"), (str, type(None)))


@dataclass(frozen=True)
class ClusterRecord:
    """The description of a cluster on disk, written before its processes are started.

    Attributes
    ----------
    id, name
        UUID, and name for people.
    provider, target, project, owner
        Provider, target and project of the cluster, and the user who made it.
    created_at
        ISO 8601, UTC.
    stage
        ``creating``, ``made`` or ``deleting``.
    embedded
        Whether the cluster runs in the process of its user, and ends with that process.
    creator
        Process that made the cluster, as :func:`scalable.liveness.identify_process` describes it.
    lock
        Checksum of the resolved manifest; see :class:`scalable.spec.Plan`.
    tags, tasks, labels
        Tags of the manifest; task -> tag; label -> tags.
    managers
        Manager id -> its ``target``, ``provider``, ``priority`` and ``limits``.
    wanted
        Tag -> wanted workers at the beginning.
    max_workers
        Upper limit of all workers on its target, or None.
    adaptive, adaptive_maximum
        Tag -> minimum and maximum of each pool that follows its load; upper limit of the workers of
        all pools together, or None.
    expectations
        Task -> (component, expected seconds, expected bytes) of one call; seconds and bytes may be
        None.
    objective, policy
        Objective (minimize time, minimize cost, balance) and policy of its plan.
    idle_timeout_s, time_to_live_s, manager_grace_s, spill_after_s
        Seconds, or None: time without work after which the cluster ends; age at which it ends;
        silence of a manager after which its idle workers end; time after which workers that did not
        start are requested from the next manager.
    manager_policy
        Order in which managers are filled: ``waterfall`` (by priority) or ``cheapest`` (by price).
    workflow_dir, working_dir, runs_dir, log_dir
        Directory that the manifest's relative paths start from; working directory of the cluster's
        processes; directory of run records; directory for the output of workers, None for that of
        the run.
    sys_path
        Entries of ``sys.path`` for workers.
    services
        Kind of its scheduler and managers: ``process``, or the name of the provider that runs them.
    dashboard_address
        Address of the live page; None without a live page.
    remote
        Whether the scheduler runs in a place that shares no files with this machine. The place
        keeps the files of the cluster, and the files here are a copy.
    abandoned_after_s
        Seconds without a report of any manager after which the cluster ends, because its creator,
        who has the manager, has died; None for never.
    place
        Where a remote cluster is, as its provider describes it.
    """

    id: str
    name: str
    provider: str
    target: str
    project: str
    owner: str
    created_at: str
    stage: str = "creating"
    embedded: bool = False
    creator: Mapping[str, Any] = field(default_factory=dict)
    lock: str = ""
    tags: tuple[str, ...] = ()
    tasks: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, list[str]] = field(default_factory=dict)
    managers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    wanted: Mapping[str, int] = field(default_factory=dict)
    max_workers: int | None = None
    adaptive: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    adaptive_maximum: int | None = None
    expectations: Mapping[str, tuple[str, float | None, int | None]] = field(default_factory=dict)
    objective: str | None = None
    policy: str = "manual"
    idle_timeout_s: float | None = None
    time_to_live_s: float | None = None
    manager_grace_s: float = 1800.0
    spill_after_s: float | None = None
    manager_policy: str = "waterfall"
    workflow_dir: str | None = None
    working_dir: str | None = None
    runs_dir: str | None = None
    log_dir: str | None = None
    sys_path: tuple[str, ...] = ()
    services: str = "process"
    dashboard_address: str | None = None
    remote: bool = False
    abandoned_after_s: float | None = None
    place: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Return the record that :meth:`to_dict` wrote; unknown keys are left out.

        Raises
        ------
        ValueError
            When the data is not a record.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        try:
            values = {key: value for key, value in data.items() if key in known}
            for name in ("tags", "sys_path"):
                values[name] = tuple(values.get(name, ()))
            record = cls(**values)
            _check({name: getattr(record, name) for name in _KINDS}, _KINDS)
            for name, kind in _KINDS_OF_VALUES.items():
                values = getattr(record, name)
                _check(values, dict.fromkeys(values, kind), f"{name}.")
            managers = {name: record._manager(name) for name in record.managers}
        except (AttributeError, TypeError) as error:
            raise ValueError(f"not a record of a cluster: {error}") from error
        return dataclasses.replace(record, managers=managers)

    def _manager(self, name: str) -> dict[str, Any]:
        """Return a manager's entry, with values for what an older release did not write."""
        absent = {key: value for key, (_, value) in _MANAGER.items()}
        entry = absent | {"provider": self.provider} | dict(self.managers[name])
        kinds = {key: kind for key, (kind, _) in _MANAGER.items()}
        _check({key: entry[key] for key in kinds}, kinds, f"managers.{name}.")
        limits = entry["limits"]
        _check(limits, dict.fromkeys(limits, int), f"managers.{name}.limits.")
        return entry


def _check(values: Mapping[str, Any], kinds: Mapping[str, _Kind], place: str = "") -> None:
    """Raise TypeError, which names the place, if a value has another type than it must have."""
    for name, kind in kinds.items():
        if not isinstance(values[name], kind):
            raise TypeError(f"{place}{name} is {values[name]!r:.80}")


@dataclass(frozen=True)
class PoolStatus:
    """Worker counts of one pool, for one manager or summed over a cluster's managers.

    Attributes
    ----------
    wanted, running, launching, draining, failed
        Numbers of workers.
    slots
        Number of calls that one worker runs at once.
    reason
        Reason why the pool is degraded, or None.
    waiting
        Reason why workers have not started yet, as the provider reports it, or None.
    lost
        Number of workers that were lost since their manager started; they are replaced.
    last_loss
        Name of the worker that was lost last, and the reason, or None.
    suspended
        Number of connected workers that their place has suspended; they are not among those that
        run.
    """

    wanted: int = 0
    running: int = 0
    launching: int = 0
    draining: int = 0
    failed: int = 0
    slots: int = 1
    reason: str | None = None
    waiting: str | None = None
    lost: int = 0
    last_loss: str | None = None
    suspended: int = 0

    @property
    def degraded(self) -> bool:
        """Whether the manager has given up starting workers for the pool."""
        return self.reason is not None

    def __add__(self, other: Self) -> Self:
        """Return the summed counts of two managers; the first manager's reasons are preferred."""
        return dataclasses.replace(
            self,
            wanted=self.wanted + other.wanted,
            running=self.running + other.running,
            launching=self.launching + other.launching,
            draining=self.draining + other.draining,
            failed=self.failed + other.failed,
            slots=max(self.slots, other.slots),
            reason=self.reason or other.reason,
            waiting=self.waiting or other.waiting,
            lost=self.lost + other.lost,
            last_loss=self.last_loss or other.last_loss,
            suspended=self.suspended + other.suspended,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the status that :meth:`to_dict` wrote; keys of later versions are ignored.

        Raises
        ------
        TypeError
            When a value has another type than it must have; the message names it.
        """
        if not isinstance(data, Mapping):
            raise TypeError(f"not the status of a pool: {data!r:.80}")
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        _check(values, {key: _POOL.get(key, _NUMBER) for key in values})
        return cls(**values)


def pools_from_dict(data: Mapping[str, Mapping[str, Any]]) -> dict[str, PoolStatus]:
    """Return tag -> status, from tag -> its JSON form; errors are those of ``from_dict``."""
    return {tag: PoolStatus.from_dict(pool) for tag, pool in data.items()}


def pools_to_dict(pools: Mapping[str, PoolStatus]) -> dict[str, dict[str, Any]]:
    """Return tag -> JSON form, from tag -> status."""
    return {tag: pool.to_dict() for tag, pool in pools.items()}


@dataclass(frozen=True)
class ClusterStatus:
    """The status of a cluster.

    Attributes
    ----------
    name, id, provider, target, owner, created_at, embedded
        As in :class:`ClusterRecord`.
    state
        One of :data:`STATES`.
    reason
        Reason of the state, or None.
    address, dashboard
        Address of its scheduler, and link to its live page with the token that opens it, or None.
    pools
        Tag -> counts of that pool.
    managers
        Managers of the cluster, each with ``id``, ``target`` and ``state``.
    orphan
        Whether a provider found jobs or processes of the cluster, which has no record here.
    ends_at, idle_ends_at
        Time at which the time to live ends the cluster, and at which the idle timeout ends it if no
        work arrives; epoch seconds or None.
    cost
        Costs and budget of the cluster, as its scheduler reports them; None if nothing has a price.
        It contains ``cost``, ``idle`` and ``per_hour``, also by ``pools`` and by ``managers``.
    adaptive
        Tag -> minimum and maximum of each pool that follows its load; maximum None for no limit.
    """

    name: str
    id: str
    provider: str
    target: str
    state: str
    address: str | None = None
    dashboard: str | None = None
    owner: str = ""
    created_at: str = ""
    pools: Mapping[str, PoolStatus] = field(default_factory=dict)
    managers: tuple[Mapping[str, Any], ...] = ()
    embedded: bool = False
    orphan: bool = False
    reason: str | None = None
    ends_at: float | None = None
    idle_ends_at: float | None = None
    cost: Mapping[str, Any] | None = None
    adaptive: Mapping[str, Sequence[int | None]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class ProgramState:
    """The state of a cluster's scheduler or manager in a remote place.

    Attributes
    ----------
    state
        ``pending``, ``running``, ``completed`` (it ended as it should) or ``failed``.
    reason
        Reason why it waits or failed, or None.
    """

    state: str
    reason: str | None = None
