"""`Remembering`: where a cluster's results are remembered, and for which tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from scalable.spec.deployment import CACHE_LIMIT, DeploymentSpec


@dataclass(frozen=True)
class Keeping:
    """Facts about a run whose results are kept for resuming it.

    Attributes
    ----------
    run
        Directory of the run.
    resumed
        Directory of the run that it resumes, or None.
    limit
        Largest size of the results in bytes.
    """

    run: str
    resumed: str | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Remembering:
    """Facts of a manifest that clients need to remember results.

    Attributes
    ----------
    url
        URL of the store, or None for the user's own directory of results.
    tasks
        Names of the tasks with ``cache: true``.
    environments
        Tag -> parts of the keys of its calls: image and environment variables.
    limit
        Largest size of the store in bytes.
    keeping
        The run whose results are kept; None if they are not.
    images_here
        Whether the workers run the images that the clients' machine has.
    """

    url: str | None = None
    tasks: frozenset[str] = frozenset()
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    limit: int = CACHE_LIMIT
    keeping: Keeping | None = None
    images_here: bool = False

    @classmethod
    def of(
        cls, spec: DeploymentSpec, keeping: Keeping | None = None, *, images_here: bool = False
    ) -> Self:
        """Return what a deployment's manifest says.

        Parameters
        ----------
        spec
            The deployment.
        keeping, images_here
            As the attributes.
        """
        environments = {}
        contained = spec.options.get("containers") != "none"
        for tag, component in spec.components.items():
            parts = {f"environment:{name}": value for name, value in component.env.items()}
            if component.image is not None and contained:
                parts["image"] = component.image
            environments[tag] = parts
        tasks = frozenset(task.name for task in spec.tasks.values() if task.cache)
        url, limit = spec.results_url, spec.cache_limit
        return cls(url, tasks, environments, limit, keeping, images_here)

    def to_message(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "url": self.url,
            "tasks": sorted(self.tasks),
            "environments": {tag: dict(parts) for tag, parts in self.environments.items()},
            "limit": self.limit,
            "keeping": None if self.keeping is None else asdict(self.keeping),
            "images_here": self.images_here,
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_message` wrote."""
        keeping = message.get("keeping")
        return cls(
            message["url"],
            frozenset(message["tasks"]),
            message["environments"],
            message.get("limit", CACHE_LIMIT),
            None if keeping is None else Keeping(**keeping),
            bool(message.get("images_here")),
        )
