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
        description="Region, such as us-east-1. Default: that of your AWS configuration.",
    )
    cluster_type: Literal["fargate", "ec2"] = Field(
        default="fargate", description="Containers on Fargate, or on EC2 machines."
    )
    instance_type: Argument | None = Field(
        default=None,
        description="Machine type for ec2, such as m6i.xlarge. Default: the cheapest that fits a "
        "worker.",
    )
    instance_types: tuple[Argument, ...] = Field(
        default=(), description="Machine types for ec2, in the order in which they are requested."
    )
    worker_cpu: PositiveInt | None = Field(
        default=None,
        description="CPU of workers whose component sets no cpus, in 1/1024 of a core.",
    )
    worker_mem: PositiveInt | None = Field(
        default=None, description="Memory of workers whose component sets no memory, in MiB."
    )
    spot: bool | Fraction = Field(
        default=False,
        description="Use spot capacity for all workers (true) or a fraction such as 0.7. Without "
        "spot capacity, workers run on demand.",
    )
    spot_allocation: Literal["price-capacity-optimized", "capacity-optimized", "lowest-price"] = (
        Field(
            default="price-capacity-optimized",
            description="Allocation strategy of EC2 fleets for spot capacity, for ec2.",
        )
    )
    vpc: Argument | None = Field(
        default=None, description="VPC. Default: the default VPC, or a new one if there is none."
    )
    subnets: tuple[Argument, ...] = Field(
        default=(), description="Subnets of all machines. Default: those of the VPC."
    )
    security_groups: tuple[Argument, ...] = Field(
        default=(),
        description="Security groups of all machines. Default: two new ones for each cluster.",
    )
    zones: tuple[Argument, ...] = Field(
        default=(), description="Zones, such as us-east-1a. Default: all with a subnet."
    )
    public: bool = Field(
        default=True,
        description="Give the machines public addresses. Without them, the subnets need a NAT "
        "gateway or endpoints, and clients need a route into the VPC.",
    )
    clients_from: tuple[Argument, ...] = Field(
        default=("0.0.0.0/0",),
        description="CIDR blocks from which clients can reach the scheduler. All connections are "
        "encrypted, and both sides use the cluster's certificates.",
    )
    ecs_cluster: Argument = Field(
        default="scalable",
        description="ECS cluster of the tasks. It is created if it does not exist.",
    )
    execution_role_arn: Argument | None = Field(
        default=None,
        description="Role that starts the Fargate tasks. Default: a new one for each cluster.",
    )
    task_role_arn: Argument | None = Field(
        default=None,
        description="Role of the workers themselves. Default on Fargate: none. For ec2, the "
        "instance profile of the same name is used.",
    )
    manager_role_arn: Argument | None = Field(
        default=None,
        description="Role of managers that run on AWS. Default: a new one for each cluster. For "
        "ec2, the instance profile of the same name is used.",
    )
    ami: Argument | None = Field(
        default=None,
        description="Machine image for ec2, with Docker. Default: that of ECS with Amazon Linux "
        "2023.",
    )
    disk: Memory | None = Field(
        default=None, description="Disk space of each machine. Default: 20 GiB, or 30 GiB for ec2."
    )
    logs_kept_days: PositiveInt = Field(
        default=14, description="Days for which CloudWatch keeps the output of machines."
    )

    def worker_size(self) -> dict[str, Any]:
        cpus = {} if self.worker_cpu is None else {"cpus": self.worker_cpu / 1024}
        return cpus if self.worker_mem is None else {**cpus, "memory": f"{self.worker_mem}MiB"}
