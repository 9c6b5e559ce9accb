"""Decisions on worker counts while tasks run: policies, and the model of durations. No I/O.

``planning`` decides counts before a run. Other packages start and stop workers.
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
