"""What a target of the local provider may say."""

from __future__ import annotations

from pydantic import Field

from scalable.manifest.fields import (
    ContainerRuntime,
    MaxWorkers,
    PositiveInt,
    ProviderOptions,
    Text,
)


class LocalOptions(ProviderOptions):
    """Options of a target with ``provider: local``."""

    max_workers: MaxWorkers | None = Field(
        default=None,
        description="Workers in all pools together: 1; where it is not written and there are more "
        "pools, one for each.",
    )
    threads_per_worker: PositiveInt = Field(
        default=1, description="Calls that a worker runs at once."
    )
    processes: bool = Field(
        default=False,
        description="Workers are processes of their own, with memory limits; otherwise threads of "
        "the workflow's process.",
    )
    interface: Text | None = Field(
        default=None,
        description="Network interface on which a detached cluster listens; loopback where left "
        "out.",
    )
    containers: ContainerRuntime = Field(
        default="none", description="Container runtime for components that name an image."
    )
    dashboard_address: Text | None = Field(
        default=None, description="Address of the live page, such as :8787; none where left out."
    )
