"""Decisions on worker counts while tasks run, and the model of task durations.

``planning`` decides counts before a run. This package does no I/O and starts no workers.
"""

from typing import TYPE_CHECKING

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.scaling.adaptive import AdaptiveScaler
    from scalable.scaling.decisions import ScaleDecision

__all__ = ["AdaptiveScaler", "ScaleDecision"]

__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.scaling.adaptive": ("AdaptiveScaler",),
        "scalable.scaling.decisions": ("ScaleDecision",),
    },
)
