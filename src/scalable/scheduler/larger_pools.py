"""Choice of the pool with more memory in which a call that ran out of memory is tried again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalable.spec import ComponentSpec


def larger_component(
    components: Mapping[str, ComponentSpec], tag: str, factor: float, slots: int = 1
) -> str | None:
    """Return the smallest component with more memory that can run the calls of another one.

    It has the same image, runtime, mounts, environment and preload script, at least as many GPUs
    and the slots that the call takes.

    Parameters
    ----------
    components
        Tag -> component.
    tag
        Tag of the component whose memory did not suffice.
    factor
        Least multiple of its memory.
    slots
        Number of slots that the call takes.
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
