"""Machines that are EC2 instances, in the AWS test bed."""

import asyncio
import dataclasses

import pytest

pytest.importorskip("aiobotocore")

from test_aws_cloud_fargate import ENDED, reached, run

from scalable.errors import ProviderError
from scalable.model import DeploymentSpec
from scalable.providers.aws.settings import settings_at
from scalable.providers.remote.cloud import CLUSTER, ROLE, WORKERS, MachineState, Refusal

PROGRAM = """
import signal, sys, time
from scalable.providers.aws.inside import machine_side
side = machine_side()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("files", dict(side.files()), flush=True)
print("address", bool(side.address()), "args", *sys.argv[1:], flush=True)
while side.notice() is None:
    if stopped := side.stopped_units():
        print("stopped", *sorted(stopped), flush=True)
        sys.exit(3)
    time.sleep(0.2)
print("noticed", flush=True)
time.sleep(600)
"""
RUNNING = MachineState.RUNNING


@pytest.fixture(autouse=True)
def command(monkeypatch, aws_bed):
    """Let containers run a program of the test, since only the machines are tested here."""
    from scalable.providers.aws import instances

    def program(request):
        return ["python3", "-c", PROGRAM, *request.program]

    monkeypatch.setattr(instances, "program", program)
    for variable, value in aws_bed.environment("alice").items():
        monkeypatch.setenv(variable, value)
    aws_bed.settings(delay=0.02)
    yield
    aws_bed.clear()


def ec2(**options):
    from scalable.providers.aws.options import AWSOptions

    own = {"cluster_type": "ec2", "region": "us-east-1", **options}
    given = AWSOptions(**own).model_dump()
    return settings_at({}, DeploymentSpec("p", "t", "aws", {}, options=given))


async def text_of(cloud, machine, word):
    """Return the output of a machine once a word is in it."""
    for _ in range(600):
        text, _ = await cloud.output(machine, "")
        if word in text:
            return text
        await asyncio.sleep(0.05)
    raise AssertionError(f"no {word!r} in {text!r}")


def test_units_share_an_instance_that_reads_its_own_files_and_ends_one_of_them(aws_bed):
    async def test(account):
        cloud = account.cloud()
        (request,) = await account.workers(
            cloud,
            ["u"],
            units=("u1", "u2"),
            program=("workers", "u1", "u2"),
            cpus=1,
            memory_bytes=2**30,
        )
        made = await cloud.run([request])
        (machine,) = await reached(account.cloud(), {CLUSTER: account.id}, RUNNING, 1)
        assert machine.id == made["u"].id
        assert machine.units == ("u1", "u2")
        assert machine.shape == made["u"].shape == "c6i.large"
        assert request.marks.items() <= machine.marks.items()
        text = await text_of(cloud, machine, "args")
        assert "files {'a/b': 'text'}" in text
        assert "address True args workers u1 u2" in text
        await cloud.stop_units(machine, ["u2"])
        assert "stopped u2" in await text_of(cloud, machine, "stopped")
        (ended,) = await reached(account.cloud(), {CLUSTER: account.id}, ENDED, 1)
        assert (ended.exit_code, ended.from_outside) == (3, False)
        removed = await account.end(cloud)
        assert any("launch template" in each for each in removed)
        assert any("role" in each for each in removed)
        assert await cloud.clean({CLUSTER: account.id}) == []

    run(test, ec2())


def test_an_instance_does_not_hold_its_files_in_user_data_or_tags(aws_bed):
    async def test(account):
        cloud = account.cloud()
        await cloud.run(await account.workers(cloud, ["u"]))
        templates = await cloud.api.pages(
            "ec2",
            "describe_launch_template_versions",
            "LaunchTemplateVersions",
            Versions=["$Latest"],
        )
        assert templates
        assert "text" not in str(templates).replace("context", "")
        data = templates[0]["LaunchTemplateData"]
        assert data["MetadataOptions"]["HttpTokens"] == "required"
        assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
        await account.end(cloud)

    run(test, ec2())


def test_a_lost_answer_starts_no_second_instance_and_throttling_is_borne(aws_bed):
    async def test(account):
        cloud = account.cloud()
        requests = await account.workers(cloud, ["u", "v"])
        aws_bed.lose_answer("ec2:CreateFleet", times=2)
        await cloud.run(requests)
        await reached(cloud, {CLUSTER: account.id}, RUNNING, 2)
        await account.cloud().run(requests)
        assert len(await cloud.machines({CLUSTER: account.id})) == 2
        await account.end(cloud)

    aws_bed.throttle("*", every=3)
    run(test, ec2())


def test_types_and_zones_are_tried_before_a_refusal(aws_bed):
    async def test(account):
        cloud = account.cloud()
        requests = await account.workers(cloud, ["u"])
        rule = aws_bed.no_capacity(type="m5.large")
        aws_bed.no_capacity(zone="us-east-1a")
        made = await cloud.run(requests)
        assert made["u"].shape == "m5.xlarge"
        aws_bed.clear(rule)
        aws_bed.no_capacity()
        (request,) = await account.workers(cloud, ["v"])
        refused = (await cloud.run([request]))["v"]
        assert isinstance(refused, Refusal)
        assert "m5.large, m5.xlarge" in refused.reason
        assert "us-east-1b" in refused.reason
        aws_bed.clear()
        await account.end(cloud)

    run(test, ec2(instance_types=("m5.large", "m5.xlarge")))


def test_a_type_that_the_region_does_not_have_is_an_error_that_names_others(aws_bed):
    async def test(account):
        cloud = account.cloud()
        with pytest.raises(ProviderError, match="does not have m5.nothing") as caught:
            await cloud.run(await account.workers(cloud, ["u"]))
        assert "m5.large" in caught.value.hint
        await account.end(cloud)

    run(test, ec2(instance_type="m5.nothing"))


def test_a_spot_instance_has_its_notice_and_ends_from_outside(aws_bed):
    async def test(account):
        cloud = account.cloud()
        (request,) = await account.workers(cloud, ["u"])
        made = await cloud.run([dataclasses.replace(request, spot=True)])
        (machine,) = await reached(cloud, {CLUSTER: account.id}, RUNNING, 1)
        assert machine.spot
        assert made["u"].spot
        await text_of(cloud, machine, "args")
        aws_bed.interrupt(machine.id, notice_s=2)
        await text_of(cloud, machine, "noticed")
        (ended,) = await reached(cloud, {CLUSTER: account.id}, ENDED, 1)
        assert ended.from_outside
        assert "spot" in ended.reason
        await account.end(cloud)

    run(test, ec2())


def test_workers_cannot_read_the_files_of_the_scheduler(aws_bed):
    async def test(account):
        cloud = account.cloud()
        await cloud.run(await account.workers(cloud, ["u"]))
        policy = await cloud.api.call(
            "iam",
            "get_role_policy",
            RoleName=f"scalable-{account.id}-ec2-{WORKERS}",
            PolicyName="scalable",
        )
        (rule,) = [
            s
            for s in policy["PolicyDocument"]["Statement"]
            if "secretsmanager:GetSecretValue" in s["Action"]
        ]
        assert rule["Condition"] == {
            "StringEquals": {f"secretsmanager:ResourceTag/{ROLE}": WORKERS}
        }
        assert account.id in rule["Resource"]
        await account.end(cloud)

    run(test, ec2())
