"""The manifest resolved for one target: overlay merged, variables expanded, values typed."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scalable.manifest.document import Node
from scalable.manifest.faults import SourceLines
from scalable.model import (
    ComponentSpec,
    DeploymentSpec,
    Diagnostic,
    KeepResults,
    ManagerSpec,
    RetryPolicy,
    TaskSpec,
    WorkerRange,
)
from scalable.model.failures import OUT_OF_MEMORY
from scalable.units import parse_bytes, parse_duration, parse_factor

if TYPE_CHECKING:
    from scalable.manifest.check import Checked, CheckedTarget
    from scalable.manifest.schema import Bounds, Component, Managers, Target, Task


#: Keys of a component whose values are the specification's.
_AS_WRITTEN = (
    *("image", "runtime", "cpus", "memory", "gpus", "slots", "mounts", "env"),
    *("preload_script", "tags"),
)


@dataclass(frozen=True)
class ResolvedManifest:
    """A manifest resolved for one target, with everything for planning and running."""

    spec: DeploymentSpec
    #: Plain values without overlays, variables and comments, with the targets that are used.
    data: Mapping[str, Any]
    _root: Node = field(default=Node({}), repr=False)
    _source: SourceLines = field(default_factory=SourceLines, repr=False)

    @cached_property
    def lock(self) -> str:
        """SHA-256 of ``data`` in hexadecimal digits, independent of formatting and key order."""
        import hashlib

        canonical = json.dumps(self.data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def with_options(self, options: Mapping[str, Any]) -> ResolvedManifest:
        """Return a copy in which the given (valid) options replace those of the target."""
        written = self.spec.written_options | options.keys()
        spec = replace(self.spec, options={**self.spec.options, **options}, written_options=written)
        return self._with_target(options, spec)

    def with_budget(self, budget: float | None) -> ResolvedManifest:
        """Return a copy with another budget, or ``self`` for None."""
        if budget is None:
            return self
        return self._with_target({"budget": budget}, replace(self.spec, budget=budget))

    def _with_target(self, changed: Mapping[str, Any], spec: DeploymentSpec) -> ResolvedManifest:
        name, targets = spec.target_name, self.data["targets"]
        data = {**self.data, "targets": {**targets, name: {**targets[name], **changed}}}
        return replace(self, spec=spec, data=data)

    def in_directory(self, directory: str | None) -> ResolvedManifest:
        """Return a copy whose relative paths start in ``directory``, if that is not None."""
        spec = replace(self.spec, workflow_dir=directory or self.spec.workflow_dir)
        return replace(self, spec=spec)

    def to_yaml(self) -> str:
        """Return the resolved manifest as YAML that resolves to the same :attr:`lock`."""
        from scalable.manifest.yaml_format import to_yaml

        return to_yaml(self.data)

    def locate(self, diagnostic: Diagnostic) -> Diagnostic:
        """Return a finding with the position of its path or nearest ancestor, unless it has one."""
        if diagnostic.line is not None:
            return diagnostic
        node, _ = self._root.nearest(diagnostic.path)
        return self._source.locate(diagnostic, node.place)


def resolved(
    checked: Checked, target: str, *, source: SourceLines, directory: pathlib.Path
) -> ResolvedManifest:
    """Return the manifest of a valid document. Relative paths start in ``directory``."""
    spec = _spec(checked, target, directory)
    return ResolvedManifest(spec, _data(checked, target), checked.root, source)


def _data(checked: Checked, target: str) -> dict[str, Any]:
    named = dict.fromkeys((target, *(manager.target for manager in checked.managers.places)))
    sections: dict[str, Any] = {
        "version": 1,
        "project": _written(checked.project),
        "targets": {
            name: {k: v for k, v in checked.targets[name].data.items() if k != "overlay"}
            for name in named
            if name in checked.targets
        },
        "components": {name: _written(part) for name, part in checked.components.items()},
        "tasks": {name: _written(part) for name, part in checked.tasks.items()},
        "managers": _written_managers(checked.managers),
    }
    tidy: dict[str, Any] = _tidy({name: value for name, value in sections.items() if value})
    return tidy


def _written(record: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = record.model_dump(mode="json", exclude_unset=True)
    return dumped


def _written_managers(managers: Managers) -> list[Any] | dict[str, Any]:
    """Return managers as written: a list, or a table if there are other keys."""
    places = [_written(manager) for manager in managers.places]
    if not managers.model_fields_set - {"places"}:
        return places
    return _written(managers) | ({"places": places} if places else {})


def _tidy(value: Any) -> Any:
    """Replace floats such as 4.0 by integers, so that both spellings have the same lock."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _tidy(item) for key, item in value.items()}
    return [_tidy(item) for item in value] if isinstance(value, list) else value


def _spec(checked: Checked, name: str, directory: pathlib.Path) -> DeploymentSpec:
    target: CheckedTarget = checked.targets[name]
    common, project = target.common, checked.project
    assert project is not None
    kept = (common if "keep_results" in common.model_fields_set else project).keep_results
    bounds = None if kept is None else KeepResults(parse_bytes(kept.size), parse_duration(kept.age))
    return DeploymentSpec(
        project_name=project.name,
        target_name=name,
        provider_name=target.provider,
        components={
            tag: _component(tag, part, common, target.worker_size)
            for tag, part in checked.components.items()
        },
        tasks={task: _task(task, part) for task, part in checked.tasks.items()},
        options=target.options,
        written_options=target.written,
        adaptive=_range(common.adaptive),
        idle_timeout_s=_seconds(common.idle_timeout),
        time_to_live_s=_seconds(common.time_to_live),
        manager_grace_s=_seconds(common.manager_grace),
        spill_after_s=_seconds(common.spill_after),
        price_per_core_hour=common.price_per_core_hour,
        prices=common.prices,
        budget=common.budget,
        managers=tuple(
            ManagerSpec(manager.target, manager.priority, manager.limits, manager.scheduler_address)
            for manager in checked.managers.places
        ),
        manager_policy=checked.managers.policy,
        local_cache=project.local_cache,
        cache_limit=parse_bytes(project.cache_limit),
        keep_results=bounds,
        default_storage=project.default_storage,
        workflow_dir=str(directory),
    )


def _component(
    name: str, part: Component, target: Target, size: Mapping[str, Any]
) -> ComponentSpec:
    """Return a component. ``size`` has the target's values for keys that the manifest omits."""
    own = {key: getattr(part, key) for key in _AS_WRITTEN}
    own |= {key: value for key, value in size.items() if key not in part.model_fields_set}
    return ComponentSpec(
        name=name,
        **own,
        setup=(*target.setup, *part.setup),
        secrets={
            name: f"env:{source.env}" if source.env is not None else f"file:{source.file}"
            for name, source in {**target.secrets, **part.secrets}.items()
        },
        python=part.python or target.python,
        workers=_range(part.workers),
    )


def _task(name: str, part: Task) -> TaskSpec:
    outputs = part.outputs.values() if isinstance(part.outputs, dict) else part.outputs
    return TaskSpec(
        name=name,
        component=part.component,
        cache=part.cache,
        retries=_policy(part),
        outputs=tuple(outputs),
        count=part.count,
        duration_s=_seconds(part.duration),
        memory=part.memory,
        after=part.after,
    )


def _policy(part: Task) -> RetryPolicy | None:
    """Return the retry policy. ``memory_on_retry`` alone requests one retry."""
    factor = None if part.memory_on_retry is None else parse_factor(part.memory_on_retry)
    retries = part.retries
    if retries is None:
        return None if factor is None else RetryPolicy(1, 0.0, (OUT_OF_MEMORY,), factor)
    return RetryPolicy(retries.count, _seconds(retries.backoff) or 0.0, retries.on, factor)


def _range(bounds: Bounds | None) -> WorkerRange | None:
    return None if bounds is None else WorkerRange(bounds.minimum, bounds.maximum)


def _seconds(text: str | None) -> float | None:
    return None if text is None else parse_duration(text)
