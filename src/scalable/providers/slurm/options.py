"""Options of a target of the slurm provider."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from scalable.manifest.fields import (
    Argument,
    ContainerRuntime,
    Interface,
    Port,
    PortRange,
    PositiveInt,
    ProviderOptions,
    Text,
    Walltime,
    allowed,
)
from scalable.providers.slurm.render import LOGS, directive_fault


def _directive(text: str) -> str:
    fault = directive_fault(text)
    if fault is not None:
        values = {"fault": fault[0], "hint": fault[1]}
        raise PydanticCustomError("name", "{fault}", values)
    return text


class SlurmOptions(ProviderOptions):
    """Options of a target with ``provider: slurm``."""

    queue: Argument | None = Field(default=None, description="Partition. Default: the site's.")
    account: Argument | None = Field(default=None, description="Account that is charged.")
    walltime: Walltime | None = Field(
        default=None, description="Time limit of a job, such as 04:00:00 or 1-12:00:00."
    )
    interface: Interface | None = Field(
        default=None, description="Network interface of scheduler and workers, such as ib0."
    )
    container_runtime: ContainerRuntime | None = Field(
        default=None, description="Container runtime for components that name an image."
    )
    qos: Argument | None = Field(default=None, description="Quality of service.")
    constraint: Argument | None = Field(default=None, description="Features that nodes must have.")
    reservation: Argument | None = Field(default=None, description="Reservation in which jobs run.")
    scheduler: Literal["login", "job"] = Field(
        default="login",
        description="Where a detached cluster's scheduler runs: the login node, or a separate job.",
    )
    scheduler_port: Port = Field(
        default=8786, description="Port of the scheduler, or the next free port if it is in use."
    )
    worker_port_range: PortRange | None = Field(
        default=None, description="Ports that workers may listen on, such as 40000:41000."
    )
    n_workers: PositiveInt | None = Field(
        default=None, description="Number of workers in all pools. Default: one for each pool."
    )
    at_most: PositiveInt | None = Field(
        default=None,
        description="Maximum number of worker jobs that are pending or running at once. Only "
        "jobs that replace those near their walltime may exceed this maximum.",
    )
    directives: tuple[Annotated[Text, AfterValidator(_directive)], ...] = Field(
        default=(), description="Additional sbatch options, which scalable does not set itself."
    )
    logs: Annotated[Text, AfterValidator(allowed(LOGS))] | None = Field(
        default=None, description="Directory for job logs. Default: next to the run."
    )
