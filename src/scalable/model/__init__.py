"""Frozen dataclasses that describe clusters, workers and plans, with their JSON forms.
This package does no I/O and does not import Dask.
"""

from typing import TYPE_CHECKING

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.model.clusters import (
        STATES,
        ClusterRecord,
        ClusterStatus,
        PoolStatus,
        ProgramState,
    )
    from scalable.model.components import (
        ComponentSpec,
        ResourceRequest,
        Starting,
        TaskSpec,
        Traits,
        WorkerRange,
    )
    from scalable.model.deployment import DeploymentSpec, KeepResults, ManagerSpec
    from scalable.model.diagnostics import Diagnostic, ValidationReport
    from scalable.model.failures import FailedCall, FailureDetails, RetryPolicy
    from scalable.model.plan import (
        CostEstimate,
        Forecast,
        ForecastSource,
        FrontPoint,
        MemoryAdvice,
        Plan,
        PredictedCost,
        ScalePlan,
        TaskPrediction,
    )
    from scalable.model.prices import Offer, Packing, Price, Rate, Shape

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
        "scalable.model.clusters": (
            "ClusterRecord",
            "ClusterStatus",
            "PoolStatus",
            "ProgramState",
            "STATES",
        ),
        "scalable.model.components": (
            "ComponentSpec",
            "ResourceRequest",
            "Starting",
            "TaskSpec",
            "Traits",
            "WorkerRange",
        ),
        "scalable.model.deployment": (
            "DeploymentSpec",
            "KeepResults",
            "ManagerSpec",
        ),
        "scalable.model.diagnostics": (
            "Diagnostic",
            "ValidationReport",
        ),
        "scalable.model.failures": (
            "FailedCall",
            "FailureDetails",
            "RetryPolicy",
        ),
        "scalable.model.plan": (
            "CostEstimate",
            "Forecast",
            "ForecastSource",
            "FrontPoint",
            "MemoryAdvice",
            "Plan",
            "PredictedCost",
            "ScalePlan",
            "TaskPrediction",
        ),
        "scalable.model.prices": (
            "Offer",
            "Packing",
            "Price",
            "Rate",
            "Shape",
        ),
    },
)
