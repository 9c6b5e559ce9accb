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
    "limited_by",
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
#: Types of a record's fields.
_KINDS: Mapping[str, _Kind] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(_MAPS, Mapping),
    **dict.fromkeys(_LIMITS, (*_NUMBER, type(None))),
}
#: Types of the values in a record's mappings.
_KINDS_OF_VALUES: Mapping[str, _Kind] = {"wanted": int, "tasks": str, "managers": Mapping}
#: Keys of a manager: type, and default for records of older releases.
_MANAGER: Mapping[str, tuple[_Kind, Any]] = {
    "target": (str, None),
    "provider": (str, None),
    "priority": (int, 0),
    "limits": (Mapping, {}),
    "scheduler_address": ((str, type(None)), None),
}
#: Fields of a pool's status that are not numbers.
_POOL: Mapping[str, _Kind] = dict.fromkeys(("reason", "waiting", "last_loss"), (str, type(None)))


@dataclass(frozen=True)
class ClusterRecord:
    """Description of a cluster on disk, written before its processes start."""

    id: str
    name: str
    provider: str
    target: str
    project: str
    owner: str
    #: Creation time (ISO 8601, UTC).
    created_at: str
    #: Stage: ``creating``, ``made`` or ``deleting``.
    stage: str = "creating"
    #: True if the cluster runs in the user's process, and stops with it.
    embedded: bool = False
    #: The creating process, as :func:`scalable.liveness.identify_process` describes it.
    creator: Mapping[str, Any] = field(default_factory=dict)
    #: Checksum of the resolved manifest; see :class:`scalable.model.Plan`.
    lock: str = ""
    tags: tuple[str, ...] = ()
    #: Maps task names to tags.
    tasks: Mapping[str, str] = field(default_factory=dict)
    #: Maps labels to tags.
    labels: Mapping[str, list[str]] = field(default_factory=dict)
    #: Maps manager ids to ``target``, ``provider``, ``priority`` and ``limits``.
    managers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Desired workers at the start, by tag.
    wanted: Mapping[str, int] = field(default_factory=dict)
    #: Maximum number of all workers on its target.
    max_workers: int | None = None
    #: Option of the target that sets this limit.
    limited_by: str = "max_workers"
    #: Minimum and maximum of each adaptive pool, by tag; maximum None for no limit.
    adaptive: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    #: Maximum number of workers in all pools together.
    adaptive_maximum: int | None = None
    #: Maps task names to component, expected seconds and expected bytes of one task.
    expectations: Mapping[str, tuple[str, float | None, int | None]] = field(default_factory=dict)
    #: Objective: minimize time, minimize cost or balance.
    objective: str | None = None
    policy: str = "manual"
    #: Time without work after which the cluster stops.
    idle_timeout_s: float | None = None
    #: Age at which the cluster stops.
    time_to_live_s: float | None = None
    #: Silence of a manager after which its idle workers stop.
    manager_grace_s: float = 1800.0
    #: Time after which workers that did not start are requested from the next manager.
    spill_after_s: float | None = None
    #: Order in which managers are filled: ``waterfall`` (by priority) or ``cheapest``.
    manager_policy: str = "waterfall"
    #: Base of the manifest's relative paths.
    workflow_dir: str | None = None
    #: Working directory of the cluster's processes.
    working_dir: str | None = None
    runs_dir: str | None = None
    #: Directory for the output of workers. None for the run's own.
    log_dir: str | None = None
    #: Entries of ``sys.path`` for workers.
    sys_path: tuple[str, ...] = ()
    #: ``process``, or the name of the provider that runs the scheduler and the managers.
    services: str = "process"
    #: Address of the dashboard, or None without a dashboard.
    dashboard_address: str | None = None
    #: True if the scheduler shares no files with this machine. The files here are then a copy.
    remote: bool = False
    #: The cluster stops after these seconds without a manager's report (its creator died).
    abandoned_after_s: float | None = None
    #: Location of a remote cluster, as its provider describes it.
    place: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Decode a result of :meth:`to_dict`, ignoring unknown keys, or raise ValueError."""
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
        """Return a manager's entry, with defaults for keys missing in older releases."""
        absent = {key: value for key, (_, value) in _MANAGER.items()}
        entry = absent | {"provider": self.provider} | dict(self.managers[name])
        kinds = {key: kind for key, (kind, _) in _MANAGER.items()}
        _check({key: entry[key] for key in kinds}, kinds, f"managers.{name}.")
        limits = entry["limits"]
        _check(limits, dict.fromkeys(limits, int), f"managers.{name}.limits.")
        return entry


def _check(values: Mapping[str, Any], kinds: Mapping[str, _Kind], place: str = "") -> None:
    """Raise TypeError for the first value of a wrong type. Its message contains ``place``."""
    for name, kind in kinds.items():
        if not isinstance(values[name], kind):
            raise TypeError(f"{place}{name} is {values[name]!r:.80}, which has the wrong type")


@dataclass(frozen=True)
class PoolStatus:
    """Worker counts of one pool, for one manager or summed over a cluster's managers."""

    wanted: int = 0
    running: int = 0
    launching: int = 0
    draining: int = 0
    failed: int = 0
    #: Number of tasks that one worker runs at once.
    slots: int = 1
    #: Reason why the pool is degraded, or None.
    reason: str | None = None
    #: Reason why workers have not started yet, as the provider reports it, or None.
    waiting: str | None = None
    #: Workers lost since their manager started. The manager replaces lost workers.
    lost: int = 0
    #: Name of the last lost worker, and the reason, or None.
    last_loss: str | None = None
    #: Connected workers that the backend has suspended; not counted in ``running``.
    suspended: int = 0

    @property
    def degraded(self) -> bool:
        """True if the manager has stopped starting workers for the pool."""
        return self.reason is not None

    def __add__(self, other: Self) -> Self:
        """Sum the counts of two managers, preferring the first one's reasons."""
        total = {}
        for name, mine in self.to_dict().items():
            its = getattr(other, name)
            total[name] = mine or its if name in _POOL else mine + its
        return dataclasses.replace(self, **total | {"slots": max(self.slots, other.slots)})

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Decode a result of :meth:`to_dict`, ignoring unknown keys, or raise TypeError."""
        if not isinstance(data, Mapping):
            raise TypeError(f"not the status of a pool: {data!r:.80}")
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        _check(values, {key: _POOL.get(key, _NUMBER) for key in values})
        return cls(**values)


def pools_from_dict(data: Mapping[str, Mapping[str, Any]]) -> dict[str, PoolStatus]:
    """Decode pool statuses by tag. Raises the errors of :meth:`PoolStatus.from_dict`."""
    return {tag: PoolStatus.from_dict(pool) for tag, pool in data.items()}


def pools_to_dict(pools: Mapping[str, PoolStatus]) -> dict[str, dict[str, Any]]:
    """Return pool statuses by tag as plain JSON values."""
    return {tag: pool.to_dict() for tag, pool in pools.items()}


@dataclass(frozen=True)
class ClusterStatus:
    """The status of a cluster."""

    name: str
    id: str
    provider: str
    target: str
    #: One of :data:`STATES`.
    state: str
    address: str | None = None
    #: Link to the dashboard with the token that opens it, or None.
    dashboard: str | None = None
    owner: str = ""
    created_at: str = ""
    pools: Mapping[str, PoolStatus] = field(default_factory=dict)
    #: Managers, each with ``id``, ``target`` and ``state``.
    managers: tuple[Mapping[str, Any], ...] = ()
    embedded: bool = False
    #: True if a provider found resources of a cluster that has no record here.
    orphan: bool = False
    reason: str | None = None
    #: Epoch seconds at which the time to live or the idle timeout stops the cluster.
    ends_at: float | None = None
    idle_ends_at: float | None = None
    #: Costs and budget as the scheduler reports them, or None if nothing has a price.
    cost: Mapping[str, Any] | None = None
    #: Minimum and maximum of each adaptive pool, by tag; maximum None for no limit.
    adaptive: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    #: Numbers of tasks by state, or None if the scheduler has not answered.
    tasks: Mapping[str, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class ProgramState:
    """The state of a remote cluster's scheduler or manager."""

    #: ``pending``, ``running``, ``completed`` (exited as it should) or ``failed``.
    state: str
    #: Reason why it is pending or failed, or None.
    reason: str | None = None
