"""Decisions on worker counts while calls run. No I/O.

A pool is the group of workers with one tag. The package contains the policies that decide the
count of a pool, the model of running times that they use, and the division of the wanted workers
among several worker managers.

Not in this package: counts that are decided before a run (``planning``), and the code that starts
and stops workers. ``benchmarks/simulation`` judges the policies.
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
