"""Options of a target of the aws provider."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scalable.manifest.fields import Argument, Image, PositiveInt, ProviderOptions


class AWSOptions(ProviderOptions):
    """Options of a target with ``provider: aws``."""

    region: Argument | None = Field(
        default=None,
        description="Region, such as us-east-1; by default that of the AWS configuration.",
    )
    cluster_type: Literal["fargate", "ec2"] = Field(
        default="fargate", description="Containers on Fargate, or on EC2 machines."
    )
    instance_type: Argument | None = Field(
        default=None, description="Type of machine for ec2, such as m6i.xlarge."
    )
    image: Image | None = Field(
        default=None, description="Image of the scheduler, and of components that name none."
    )
    n_workers: PositiveInt | None = Field(
        default=None, description="Number of workers in all pools; by default one for each pool."
    )
    worker_cpu: PositiveInt | None = Field(
        default=None, description="No effect in this version: the component's cpus."
    )
    worker_mem: PositiveInt | None = Field(
        default=None, description="No effect in this version: the component's memory."
    )
    vpc: Argument | None = Field(default=None, description="VPC; by default the default VPC.")
    subnets: tuple[Argument, ...] = Field(default=(), description="Subnets of the workers.")
    security_groups: tuple[Argument, ...] = Field(
        default=(), description="Security groups of the workers."
    )
    execution_role_arn: Argument | None = Field(
        default=None, description="Role that starts the tasks."
    )
    task_role_arn: Argument | None = Field(
        default=None, description="Role that the workers themselves have."
    )
