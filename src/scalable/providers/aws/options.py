"""Options of a target of the aws provider."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from scalable.manifest.fields import (
    Argument,
    Memory,
    PositiveInt,
)
from scalable.providers.remote.options import RemoteOptions

#: Fraction of machines.
Fraction = Annotated[float, Field(gt=0, lt=1)]


class AWSOptions(RemoteOptions):
    """Options of a target with ``provider: aws``."""

    region: Argument | None = Field(
        default=None,
        description="Region, such as us-east-1; by default that of the AWS configuration.",
    )
    cluster_type: Literal["fargate", "ec2"] = Field(
        default="fargate", description="Containers on Fargate, or on EC2 machines."
    )
    instance_type: Argument | None = Field(
        default=None,
        description="Type of machine for ec2, such as m6i.xlarge; by default the cheapest that has "
        "room for a worker.",
    )
    instance_types: tuple[Argument, ...] = Field(
        default=(),
        description="Types of machines for ec2, in the order in which they are tried.",
    )
    worker_cpu: PositiveInt | None = Field(
        default=None,
        description="CPU of workers whose component names no cpus, in 1/1024 of a core.",
    )
    worker_mem: PositiveInt | None = Field(
        default=None,
        description="Memory of workers whose component names no memory, in MiB.",
    )
    spot: bool | Fraction = Field(
        default=False,
        description="Spot capacity for workers, for all of them or for a fraction such as 0.7; "
        "where there is none, workers are on demand.",
    )
    spot_allocation: Literal["price-capacity-optimized", "capacity-optimized", "lowest-price"] = (
        Field(
            default="price-capacity-optimized",
            description="Choice among the spot offers for ec2, as fleet requests name it.",
        )
    )
    vpc: Argument | None = Field(
        default=None,
        description="VPC; by default the default one, or if there is none, a new one.",
    )
    subnets: tuple[Argument, ...] = Field(
        default=(), description="Subnets of all machines; by default those of the VPC."
    )
    security_groups: tuple[Argument, ...] = Field(
        default=(),
        description="Security groups of all machines; by default two are created for each cluster.",
    )
    zones: tuple[Argument, ...] = Field(
        default=(), description="Zones such as us-east-1a; by default all with a subnet."
    )
    public: bool = Field(
        default=True,
        description="Public addresses for the machines. Without them the subnets need a NAT "
        "gateway or endpoints, and clients a way into the VPC.",
    )
    clients_from: tuple[Argument, ...] = Field(
        default=("0.0.0.0/0",),
        description="CIDR blocks from which clients reach the scheduler. All connections are "
        "encrypted, and both sides show certificates of the cluster.",
    )
    ecs_cluster: Argument = Field(
        default="scalable", description="ECS cluster of the tasks; created if it does not exist."
    )
    execution_role_arn: Argument | None = Field(
        default=None,
        description="Role that starts the tasks of Fargate; by default one is made for each "
        "cluster.",
    )
    task_role_arn: Argument | None = Field(
        default=None,
        description="Role that the workers themselves have; by default none on Fargate. For ec2 "
        "the instance profile of the same name is used.",
    )
    manager_role_arn: Argument | None = Field(
        default=None,
        description="Role of managers that run there; by default one is created for each cluster. "
        "For ec2 the instance profile of the same name is used.",
    )
    ami: Argument | None = Field(
        default=None,
        description="Machine image for ec2, with Docker; by default that of ECS with Amazon Linux "
        "2023.",
    )
    disk: Memory | None = Field(
        default=None, description="Disk space of each machine; by default 20 GiB, 30 GiB for ec2."
    )
    logs_kept_days: PositiveInt = Field(
        default=14, description="Days for which CloudWatch keeps the output of machines."
    )

    def worker_size(self) -> dict[str, Any]:
        cpus = {} if self.worker_cpu is None else {"cpus": self.worker_cpu / 1024}
        return cpus if self.worker_mem is None else {**cpus, "memory": f"{self.worker_mem}MiB"}
