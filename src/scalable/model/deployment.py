"""`DeploymentSpec`: the request to a provider, in a form that all providers understand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from scalable.model.components import ComponentSpec, ResourceRequest, TaskSpec, WorkerRange
from scalable.storage import absolute_url
from scalable.units import parse_walltime

#: Default limit of cached results in bytes.
CACHE_LIMIT: Final = 20 * 10**9


@dataclass(frozen=True)
class KeepResults:
    """Limits on the size and age of results that are kept to resume a run."""

    #: Maximum size of one run's results in bytes.
    size: int = 20 * 10**9
    #: Seconds after the last result during which the results are kept.
    age_s: float = 30 * 86400.0


@dataclass(frozen=True)
class ManagerSpec:
    """A worker manager of a cluster, which starts and stops workers on one target."""

    target: str
    #: Managers with lower numbers get workers first.
    priority: int = 0
    #: Maximum number of the manager's workers, by tag.
    limits: Mapping[str, int] = field(default_factory=dict)
    #: ``HOST:PORT`` for the manager's workers. None for the manager's own address.
    scheduler_address: str | None = None


@dataclass(frozen=True)
class DeploymentSpec:
    """The request to a provider: components, tasks and options of one target.

    Attributes
    ----------
    project_name
        Name of the project, which is part of run and cluster names.
    target_name
        Name of the selected target.
    provider_name
        Canonical (lower-case) name of the target's provider.
    components
        Resource profiles by tag.
    tasks
        Entries of the manifest by task name.
    options
        The provider's own options as JSON values, with defaults filled in where the provider has an
        option model.
    written_options
        Names of the options that are written in the manifest. The others are defaults.
    adaptive
        Bounds on the total over all pools, or None.
    idle_timeout_s, time_to_live_s, manager_grace_s, spill_after_s
        Seconds, or None: idle time before the cluster stops; its maximum age; silence of a manager
        before its idle workers stop; waiting time before missing workers are requested from the
        next manager.
    price_per_core_hour
        Price of one core for one hour in the user's currency, or None.
    prices
        Hourly price of one worker or machine, by component or by the provider's shape name.
    budget
        Amount of money that the cluster may spend, or None.
    managers
        Managers of the cluster.
    manager_policy
        Order in which managers are filled: ``waterfall`` (by priority) or ``cheapest`` (by price).
    local_cache
        Directory or URL of cached results as written, or None; see ``results_url``.
    cache_limit
        Largest size in bytes of the store of cached results.
    keep_results
        Bounds of a run's results that are kept for resuming it, or None.
    default_storage
        Storage of the project's results as written, or None; see ``storage_url``.
    workflow_dir
        Directory of the manifest, where relative paths start.
    log_dir
        Directory for the output of workers, or None for a temporary one.
    """

    project_name: str
    target_name: str
    provider_name: str
    components: Mapping[str, ComponentSpec]
    tasks: Mapping[str, TaskSpec] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    written_options: frozenset[str] = frozenset()
    adaptive: WorkerRange | None = None
    idle_timeout_s: float | None = None
    time_to_live_s: float | None = None
    manager_grace_s: float | None = None
    spill_after_s: float | None = None
    price_per_core_hour: float | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    budget: float | None = None
    managers: tuple[ManagerSpec, ...] = ()
    manager_policy: str = "waterfall"
    local_cache: str | None = None
    cache_limit: int = CACHE_LIMIT
    keep_results: KeepResults | None = None
    default_storage: str | None = None
    workflow_dir: str | None = None
    log_dir: str | None = None

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags, in the order of the manifest."""
        return tuple(self.components)

    @cached_property
    def walltime_s(self) -> float | None:
        """The walltime of the target in seconds, or None without one."""
        return walltime_of(self.options)

    @cached_property
    def storage_url(self) -> str | None:
        """Absolute URL of the project's storage, or None if the manifest has none."""
        written = self.default_storage
        return None if written is None else absolute_url(written, self.workflow_dir or ".")

    @cached_property
    def results_url(self) -> str | None:
        """URL of the store of cached results, or None for the user's own directory.

        It is ``local_cache``, or else a directory in the project's storage.
        """
        if self.local_cache is not None:
            return absolute_url(self.local_cache, self.workflow_dir or ".")
        return None if self.storage_url is None else f"{self.storage_url.rstrip('/')}/.results"

    def resources(self, tag: str) -> ResourceRequest:
        """Return the resources of one worker of a tag, with the target's walltime if it has one."""
        component = self.components[tag]
        walltime = self.options.get("walltime")
        return ResourceRequest(
            cpus=component.cpus,
            memory=component.memory,
            walltime=None if walltime is None else str(walltime),
            gpus=component.gpus,
        )


def walltime_of(options: Mapping[str, Any]) -> float | None:
    """Return the walltime option in seconds or None. Raises ValueError for an invalid value."""
    written = options.get("walltime")
    return None if written is None else parse_walltime(str(written))
