"""Live decisions on worker counts: policies, task model and shares of several managers. Pure.

Not in this package: counts that are decided before a run (``planning``), simulations of policies
(``simulation``), and the execution of decisions (the engine).
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
