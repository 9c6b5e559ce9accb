"""`CacheSettings`: where a cluster's results are cached, and for which tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from scalable.model.deployment import CACHE_LIMIT, DeploymentSpec


@dataclass(frozen=True)
class Keeping:
    """A run whose results are kept so that it can be resumed."""

    #: Directory of the run.
    run: str
    #: Directory of the run that it resumes, or None.
    resumed: str | None = None
    #: Largest size of the results in bytes.
    limit: int | None = None
    #: True if results of the resumed run are used although the tasks' code has changed.
    despite_code: bool = False


@dataclass(frozen=True)
class CacheSettings:
    """Settings in a manifest that clients need for caching."""

    #: URL of the store, or None for the user's own directory.
    url: str | None = None
    #: Components of the tasks with ``cache: true``, by task name. "" for none.
    tasks: Mapping[str, str] = field(default_factory=dict)
    #: Parts of task keys by tag: image and environment variables.
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Largest size of the store in bytes.
    limit: int = CACHE_LIMIT
    #: The run whose results are kept, or None.
    keeping: Keeping | None = None
    #: True if the workers run the images of the clients' machine.
    images_here: bool = False

    @classmethod
    def of(
        cls, spec: DeploymentSpec, keeping: Keeping | None = None, *, images_here: bool = False
    ) -> Self:
        environments = {}
        contained = spec.options.get("containers") != "none"
        for tag, component in spec.components.items():
            parts = {f"environment:{name}": value for name, value in component.env.items()}
            if component.image is not None and contained:
                parts["image"] = component.image
            environments[tag] = parts
        tasks = {task.name: task.component or "" for task in spec.tasks.values() if task.cache}
        url, limit = spec.results_url, spec.cache_limit
        return cls(url, tasks, environments, limit, keeping, images_here)

    def to_message(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "tasks": dict(self.tasks),
            "environments": {tag: dict(parts) for tag, parts in self.environments.items()},
            "limit": self.limit,
            "keeping": None if self.keeping is None else asdict(self.keeping),
            "images_here": self.images_here,
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Self:
        keeping = message.get("keeping")
        return cls(
            message["url"],
            message["tasks"],
            message["environments"],
            message.get("limit", CACHE_LIMIT),
            None if keeping is None else Keeping(**keeping),
            bool(message.get("images_here")),
        )
