"""Live decisions on worker counts: policies, task model and shares of several managers. Pure.

Not in this package: counts that are decided before a run (``planning``), simulations of policies
(``simulation``), and the execution of decisions (the engine).
"""

from scalable.scaling.adaptive import AdaptiveScaler
from scalable.scaling.decisions import ScaleDecision

__all__ = ["AdaptiveScaler", "ScaleDecision"]
