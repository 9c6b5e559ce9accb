"""What users have made in the account, beside machines."""

from moto.ec2.models import ec2_backends
from moto.ecs.models import ecs_backends
from moto.iam.models import iam_backends
from moto.secretsmanager.models import secretsmanager_backends

from .identities import ACCOUNT

#: Regions in which tests work.
REGIONS = ("us-east-1", "us-west-2", "eu-west-1")


def things():
    """Yield a description of each thing."""
    for backend in iam_backends[ACCOUNT].values():
        yield from (f"role {r.name}" for r in backend.roles.values() if r.path != "/")
        yield from (f"profile {p.name}" for p in backend.instance_profiles.values())
    for region in REGIONS:
        for text in in_region(region):
            yield f"{region}: {text}"


def in_region(region):
    secrets = secretsmanager_backends[ACCOUNT][region].secrets.values()
    yield from (f"secret {s.name}" for s in secrets if not s.deleted_date)
    ecs = ecs_backends[ACCOUNT][region]
    for revisions in ecs.task_definitions.values():
        for one in revisions.values():
            if one.status == "ACTIVE":
                yield f"task definition {one.family}"
    yield from (f"ECS cluster {c.name}" for c in ecs.clusters.values() if c.status == "ACTIVE")
    ec2 = ec2_backends[ACCOUNT][region]
    for groups in ec2.groups.values():
        yield from (f"group {g.name}" for g in groups.values() if g.name.startswith("scalable"))
    yield from (f"VPC {vpc.id}" for vpc in ec2.vpcs.values() if not vpc.is_default)
    yield from (f"template {t.name}" for t in ec2.launch_templates.values())
