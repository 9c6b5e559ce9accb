"""Options of a target of the local provider."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from scalable.manifest.fields import (
    ContainerRuntime,
    Interface,
    MaxWorkers,
    PositiveInt,
    ProviderOptions,
    Text,
)
from scalable.protocol.addresses import listen_address
from scalable.providers.local.traits import DEFAULTS

# Options ------------------------------------------------------------------------------------------


def _listening(written: str) -> str:
    listen_address(written)
    return written


class LocalOptions(ProviderOptions):
    """Options of a target with ``provider: local``."""

    max_workers: MaxWorkers | None = Field(
        default=DEFAULTS["max_workers"],
        description="Maximum number of workers in all pools. Default: one for each pool.",
    )
    threads_per_worker: PositiveInt = Field(
        default=DEFAULTS["threads_per_worker"],
        description="Number of tasks that a worker runs at once.",
    )
    processes: bool = Field(
        default=DEFAULTS["processes"],
        description="True for workers that are processes with memory limits, false for threads of "
        "your script's process.",
    )
    interface: Interface | None = Field(
        default=DEFAULTS["interface"],
        description="Network interface on which a detached cluster listens. Default: loopback.",
    )
    containers: ContainerRuntime = Field(
        default=DEFAULTS["containers"],
        description="Container runtime for components that name an image.",
    )
    dashboard_address: Annotated[Text, AfterValidator(_listening)] | None = Field(
        default=DEFAULTS["dashboard_address"],
        description="Address of the dashboard, such as :8787. It is on loopback unless you write a "
        "host. Default: no dashboard.",
    )
