"""Choice of the pool with more memory in which a task that ran out of memory is retried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalable.spec import ComponentSpec


def larger_component(
    components: Mapping[str, ComponentSpec], tag: str, factor: float, slots: int = 1
) -> str | None:
    """Return the smallest component with ``factor`` times the memory that can run a tag's tasks.
    It has the same image, runtime, mounts, environment and preload script, at least as many GPUs,
    and the slots that the task takes.
    """
    own = components.get(tag)
    if own is None or own.memory_bytes is None:
        return None
    able = [
        (other.memory_bytes, name)
        for name, other in components.items()
        if name != tag
        and other.memory_bytes is not None
        and other.memory_bytes >= factor * own.memory_bytes
        and _surroundings(other) == _surroundings(own)
        and other.gpus >= own.gpus
        and other.slots >= slots
    ]
    return min(able)[1] if able else None


def _surroundings(component: ComponentSpec) -> tuple[Any, ...]:
    mounts, env = dict(component.mounts), dict(component.env)
    return component.image, component.runtime, mounts, env, component.preload_script
