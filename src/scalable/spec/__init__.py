"""Nouns: frozen dataclasses that are written as JSON and read from it.

No I/O, no Dask, no validation of files (that is ``manifest``), no decisions (those are ``planning``
and ``scaling``).
"""

from scalable.spec.clusters import STATES, ClusterRecord, ClusterStatus, PoolStatus
from scalable.spec.components import ComponentSpec, TaskSpec, WorkerRange
from scalable.spec.deployment import DeploymentSpec, ManagerSpec
from scalable.spec.diagnostics import Diagnostic, ValidationReport
from scalable.spec.forecasts import Forecast, ForecastSource
from scalable.spec.plan import (
    CostEstimate,
    FrontPoint,
    MemoryAdvice,
    Plan,
    PredictedCost,
    ScalePlan,
    TaskPrediction,
)
from scalable.spec.resources import ResourceRequest
from scalable.spec.traits import Starting, Traits

__all__ = [
    "STATES",
    "ClusterRecord",
    "ClusterStatus",
    "ComponentSpec",
    "CostEstimate",
    "DeploymentSpec",
    "Diagnostic",
    "Forecast",
    "ForecastSource",
    "FrontPoint",
    "ManagerSpec",
    "MemoryAdvice",
    "Plan",
    "PoolStatus",
    "PredictedCost",
    "ResourceRequest",
    "ScalePlan",
    "Starting",
    "TaskPrediction",
    "TaskSpec",
    "Traits",
    "ValidationReport",
    "WorkerRange",
]
