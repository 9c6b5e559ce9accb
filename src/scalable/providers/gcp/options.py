"""Options of a target of the gcp provider."""

from __future__ import annotations

from pydantic import Field

from scalable.manifest.fields import PositiveInt, ProviderOptions, Text


class GCPOptions(ProviderOptions):
    """Options of a target with ``provider: gcp``."""

    region: Text | None = Field(default=None, description="Region, such as us-central1.")
    zone: Text | None = Field(default=None, description="Zone, such as us-central1-a.")
    project_id: Text | None = Field(default=None, description="Project that is charged.")
    instance_type: Text | None = Field(
        default=None, description="Type of machine, such as e2-standard-4."
    )
    image: Text | None = Field(
        default=None, description="Image of the scheduler, and of components that name none."
    )
    n_workers: PositiveInt | None = Field(
        default=None, description="Number of workers in all pools; by default one for each pool."
    )
