"""Options of a target of the gcp provider."""

from __future__ import annotations

from pydantic import Field

from scalable.manifest.fields import Argument, Image, PositiveInt, ProviderOptions


class GCPOptions(ProviderOptions):
    """Options of a target with ``provider: gcp``."""

    region: Argument | None = Field(default=None, description="Region, such as us-central1.")
    zone: Argument | None = Field(default=None, description="Zone, such as us-central1-a.")
    project_id: Argument | None = Field(default=None, description="Project that is charged.")
    instance_type: Argument | None = Field(
        default=None, description="Type of machine, such as e2-standard-4."
    )
    image: Image | None = Field(
        default=None, description="Image of the scheduler, and of components that name none."
    )
    n_workers: PositiveInt | None = Field(
        default=None, description="Number of workers in all pools; by default one for each pool."
    )
