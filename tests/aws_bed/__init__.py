"""An AWS account on this machine for the tests; `scripts/aws-testbed` by hand.

moto's server answers most calls. A gate in front of it checks every request against botocore's
service models and against rules that the models do not express, counts calls and brings faults. ECS
tasks and EC2 instances run as local processes with an address of 127.0.0.0/8 each, in containers as
those of the Kubernetes test bed: the files of the user are not in them.
"""

from kubernetes_bed.container import unavailable

from .bed import AwsBed
from .identities import ACCOUNT, REGION, USERS

__all__ = ["ACCOUNT", "REGION", "USERS", "AwsBed", "unavailable"]
