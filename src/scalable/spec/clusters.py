"""Clusters as records: what was asked for, and how one is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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


_TEXTS = ("id", "name", "provider", "target", "project", "owner", "created_at", "stage")
_MAPS = ("creator", "managers", "wanted", "tasks", "labels")
#: What whoever reads a record relies on.
_KINDS: Mapping[str, type] = {**dict.fromkeys(_TEXTS, str), **dict.fromkeys(_MAPS, Mapping)}


@dataclass(frozen=True)
class ClusterRecord:
    """What a cluster was asked to be; written before anything of it exists.

    Attributes
    ----------
    id, name
        UUID, and what people call it.
    provider, target, project, owner
        Where it lives, for what, and whose it is.
    created_at
        ISO 8601, UTC.
    stage
        ``creating``, ``made`` or ``deleting``.
    embedded
        Whether it lives in the process of its user, and ends with that.
    creator
        The process that made it, as :func:`scalable.liveness.identify_process` describes it.
    lock
        Of the resolved manifest.
    tags, tasks, labels
        Of the manifest: tags; task -> tag; label -> tags.
    managers
        Id -> ``target``, ``provider``, ``priority`` and ``limits``.
    wanted
        Tag -> workers at the beginning.
    max_workers
        Most workers over all pools that its target allows, or None.
    adaptive, adaptive_maximum
        Tag -> minimum and maximum of each pool that follows its load; most workers of all pools
        together, or None.
    expectations
        Task -> component, expected seconds and bytes of one call, each or None.
    objective, policy
        Of the plan that it was made for.
    idle_timeout_s, time_to_live_s, manager_grace_s, spill_after_s
        Lengths of time in seconds, or None.
    workflow_dir, working_dir, runs_dir, log_dir
        Where relative paths of the manifest start; where its processes run; where the run is
        recorded; where workers write, None for beside the run.
    sys_path
        Where workers look for modules.
    services
        What runs its scheduler and managers: ``process``, or the provider that does.
    dashboard_address
        Of the live page, or None for none.
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
    workflow_dir: str | None = None
    working_dir: str | None = None
    runs_dir: str | None = None
    log_dir: str | None = None
    sys_path: tuple[str, ...] = ()
    services: str = "process"
    dashboard_address: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The attributes as plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The record that :meth:`to_dict` wrote; keys of later versions are left out.

        Raises
        ------
        ValueError
            When this is no record.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        try:
            values = {key: value for key, value in data.items() if key in known}
            for name in ("tags", "sys_path"):
                values[name] = tuple(values.get(name, ()))
            record = cls(**values)
        except (AttributeError, TypeError) as error:
            raise ValueError(f"no record of a cluster: {error}") from error
        for name, kind in _KINDS.items():
            if not isinstance(getattr(record, name), kind):
                raise ValueError(f"no record of a cluster: {name} is {getattr(record, name)!r}")  # noqa: TRY004
        return record


@dataclass(frozen=True)
class ClusterStatus:
    """How a cluster is.

    Attributes
    ----------
    name, id, provider, target, owner, created_at, embedded
        As in :class:`ClusterRecord`.
    state
        One of :data:`STATES`.
    reason
        Why it is in that state, where there is something to say.
    address, dashboard
        Of its scheduler and its live page, where there are any.
    pools
        Tag -> ``wanted``, ``running``, ``launching`` and ``failed`` workers, and more.
    managers
        Each with ``id``, ``target`` and ``state``.
    orphan
        Whether it is only what was found in a place, without a record.
    ends_at, idle_ends_at
        When it ends by itself in any case, and if nothing happens; epoch seconds or None.
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
    pools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    managers: tuple[Mapping[str, Any], ...] = ()
    embedded: bool = False
    orphan: bool = False
    reason: str | None = None
    ends_at: float | None = None
    idle_ends_at: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The attributes as plain JSON values."""
        return dataclasses.asdict(self)
