"""Frozen dataclasses that describe clusters, workers and plans, with their JSON forms.
This package does no I/O and does not import Dask.
"""

from typing import TYPE_CHECKING

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.spec.clusters import (
        STATES,
        ClusterRecord,
        ClusterStatus,
        PoolStatus,
        ProgramState,
    )
    from scalable.spec.components import ComponentSpec, TaskSpec, WorkerRange
    from scalable.spec.deployment import DeploymentSpec, KeepResults, ManagerSpec
    from scalable.spec.diagnostics import Diagnostic, ValidationReport
    from scalable.spec.failures import FailedCall, FailureDetails
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
    from scalable.spec.prices import Offer, Packing, Price, Rate, Shape
    from scalable.spec.resources import ResourceRequest
    from scalable.spec.retrying import RetryPolicy
    from scalable.spec.traits import Starting, Traits

__all__ = [
    "STATES",
    "ClusterRecord",
    "ClusterStatus",
    "ComponentSpec",
    "CostEstimate",
    "DeploymentSpec",
    "Diagnostic",
    "FailedCall",
    "FailureDetails",
    "Forecast",
    "ForecastSource",
    "FrontPoint",
    "KeepResults",
    "ManagerSpec",
    "MemoryAdvice",
    "Offer",
    "Packing",
    "Plan",
    "PoolStatus",
    "PredictedCost",
    "Price",
    "ProgramState",
    "Rate",
    "ResourceRequest",
    "RetryPolicy",
    "ScalePlan",
    "Shape",
    "Starting",
    "TaskPrediction",
    "TaskSpec",
    "Traits",
    "ValidationReport",
    "WorkerRange",
]

__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.spec.clusters": (
            "STATES",
            "ClusterRecord",
            "ClusterStatus",
            "PoolStatus",
            "ProgramState",
        ),
        "scalable.spec.components": (
            "ComponentSpec",
            "TaskSpec",
            "WorkerRange",
        ),
        "scalable.spec.deployment": (
            "DeploymentSpec",
            "KeepResults",
            "ManagerSpec",
        ),
        "scalable.spec.diagnostics": (
            "Diagnostic",
            "ValidationReport",
        ),
        "scalable.spec.failures": (
            "FailedCall",
            "FailureDetails",
        ),
        "scalable.spec.forecasts": (
            "Forecast",
            "ForecastSource",
        ),
        "scalable.spec.plan": (
            "CostEstimate",
            "FrontPoint",
            "MemoryAdvice",
            "Plan",
            "PredictedCost",
            "ScalePlan",
            "TaskPrediction",
        ),
        "scalable.spec.prices": (
            "Offer",
            "Packing",
            "Price",
            "Rate",
            "Shape",
        ),
        "scalable.spec.resources": ("ResourceRequest",),
        "scalable.spec.retrying": ("RetryPolicy",),
        "scalable.spec.traits": (
            "Starting",
            "Traits",
        ),
    },
)
