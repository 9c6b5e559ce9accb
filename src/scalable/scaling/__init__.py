"""Decides how many workers pools should have while they run: policies, task model, simulator. Pure.

What is decided once, before a run, is in ``planning``; who carries a decision out is the engine.
"""

from scalable.scaling.adaptive import AdaptiveScaler
from scalable.scaling.decisions import ScaleDecision

__all__ = ["AdaptiveScaler", "ScaleDecision"]
