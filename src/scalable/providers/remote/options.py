"""Options of targets of all remote backends."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scalable.manifest.fields import Duration, Environment, Image, PositiveInt, ProviderOptions


class RemoteOptions(ProviderOptions):
    """Base class of target options for backends that run the scheduler."""

    image: Image | None = Field(
        default=None, description="Image of the scheduler, and of components that set none."
    )
    n_workers: PositiveInt | None = Field(
        default=None, description="Number of workers in all pools. Default: one for each pool."
    )
    env: Environment = Field(default={}, description="Environment variables of all containers.")
    manager: Literal["here", "there"] | None = Field(
        default=None,
        description="Where the manager runs: `there`, next to the scheduler (default of detached "
        "clusters), or `here`, on your machine (default of sessions, in their own process).",
    )
    start_timeout: Duration = Field(
        default="10m",
        description="Maximum time for a machine or pod to start its program.",
    )
    abandoned_after: Duration = Field(
        default="5m",
        description="A session's cluster stops after this time without a report from the session.",
    )
    allow_version_mismatch: bool = Field(
        default=False,
        description="Accept an image whose release of distributed differs from your machine's. "
        "scalable then only warns.",
    )
    reconnect_within: Duration = Field(
        default="2m",
        description="A client's tasks are cancelled once its connection is lost for this time.",
    )
