"""What machines of AWS need beside themselves: found, made once, and removed."""

import pytest

pytest.importorskip("aiobotocore")

from test_aws_cloud_fargate import run, user

from scalable.errors import ProviderError
from scalable.providers.aws.settings import NetworkOptions, Settings
from scalable.providers.remote.cloud import CLUSTER

__all__ = ["user"]
#: A region in which the tests remove the default VPC.
BARE = Settings(region="eu-west-1", kinds=("fargate",))


async def marked(cloud, operation, key, **names):
    filters = [{"Name": f"tag:{k}", "Values": [v]} for k, v in names.items()]
    return await cloud.api.pages("ec2", operation, key, Filters=filters)


async def remove_default_vpc(cloud):
    api = cloud.api
    for vpc in await api.pages(
        "ec2", "describe_vpcs", "Vpcs", Filters=[{"Name": "is-default", "Values": ["true"]}]
    ):
        own = [{"Name": "vpc-id", "Values": [vpc["VpcId"]]}]
        for subnet in await api.pages("ec2", "describe_subnets", "Subnets", Filters=own):
            await api.call("ec2", "delete_subnet", SubnetId=subnet["SubnetId"])
        attached = [{"Name": "attachment.vpc-id", "Values": [vpc["VpcId"]]}]
        for each in await api.pages(
            "ec2", "describe_internet_gateways", "InternetGateways", Filters=attached
        ):
            gateway = each["InternetGatewayId"]
            await api.call(
                "ec2", "detach_internet_gateway", InternetGatewayId=gateway, VpcId=vpc["VpcId"]
            )
        await api.call("ec2", "delete_vpc", VpcId=vpc["VpcId"])


def test_a_region_without_a_default_vpc_gets_one_that_the_last_cluster_removes(user, aws_bed):
    async def test(account):
        cloud = account.cloud()
        await remove_default_vpc(cloud)
        assert any("VPC" in each for each in await cloud.missing(account.id))
        aws_bed.lose_answer("ec2:CreateInternetGateway")
        with pytest.raises(ProviderError):  # it would be made twice
            await cloud.prepare(account.id, {})
        await cloud.prepare(account.id, {})
        (vpc,) = await marked(cloud, "describe_vpcs", "Vpcs", scalable="vpc")
        assert (
            len(
                await marked(
                    cloud, "describe_internet_gateways", "InternetGateways", scalable="gateway"
                )
            )
            == 1
        )
        subnets = await marked(cloud, "describe_subnets", "Subnets", scalable="subnet")
        assert len({s["AvailabilityZone"] for s in subnets}) == 3
        assert {s["VpcId"] for s in subnets} == {vpc["VpcId"]}
        await account.cloud().prepare(account.id, {})
        assert len(await marked(cloud, "describe_vpcs", "Vpcs", scalable="vpc")) == 1
        removed = await cloud.clean({CLUSTER: account.id})
        assert any("VPC" in each for each in removed)
        assert await marked(cloud, "describe_vpcs", "Vpcs", scalable="vpc") == []

    run(test, BARE)


def test_what_is_made_is_told_before_and_not_made_by_telling(user, aws_bed):
    async def test(account):
        cloud = account.cloud()
        told = await cloud.missing(account.id)
        assert sum("security group" in each for each in told) == 2
        assert any("role" in each for each in told)
        assert (
            await marked(
                cloud, "describe_security_groups", "SecurityGroups", **{CLUSTER: account.id}
            )
            == []
        )
        await cloud.prepare(account.id, {})
        await account.cloud().prepare(account.id, {})
        made = await marked(
            cloud, "describe_security_groups", "SecurityGroups", **{CLUSTER: account.id}
        )
        assert len(made) == 2
        assert len(await cloud.clean({CLUSTER: account.id})) >= 3

    run(test)


def test_what_the_manifest_names_is_taken_and_nothing_is_made_instead(user, aws_bed):
    async def test(account):
        other = account.cloud(Settings(region="us-east-1"))
        subnet = (await other.api.pages("ec2", "describe_subnets", "Subnets"))[0]
        groups = await other.api.pages(
            "ec2",
            "describe_security_groups",
            "SecurityGroups",
            Filters=[{"Name": "vpc-id", "Values": [subnet["VpcId"]]}],
        )
        wish = NetworkOptions(
            subnets=(subnet["SubnetId"],), security_groups=(groups[0]["GroupId"],)
        )
        role = "arn:aws:iam::123456789012:role/given"
        cloud = account.cloud(
            Settings(region="us-east-1", kinds=("fargate",), network=wish, execution_role=role)
        )
        aws_bed.calls(reset=True)
        await cloud.prepare(account.id, {})
        made = [name for name in aws_bed.calls() if ":Create" in name and "LogGroup" not in name]
        assert made in ([], ["ecs:CreateCluster"])
        await cloud.clean({CLUSTER: account.id})

    run(test)


def test_a_subnet_that_does_not_exist_is_an_error_with_its_name(user):
    async def test(account):
        with pytest.raises(ProviderError, match="does not have the subnets subnet-0000"):
            await account.cloud().prepare(account.id, {})

    run(test, Settings(region="us-east-1", network=NetworkOptions(subnets=("subnet-0000",))))


def test_a_role_that_its_creator_left_without_rights_gets_them(user, aws_bed):
    async def test(account):
        aws_bed.fail("iam:PutRolePolicy", "ServiceFailure", status=400, times=40)
        cloud = account.cloud()
        with pytest.raises(ProviderError):
            await cloud.prepare(account.id, {})
        aws_bed.clear()
        await account.cloud().prepare(account.id, {})
        name = f"scalable-{account.id}-execution"
        policy = await cloud.api.call(
            "iam", "get_role_policy", RoleName=name, PolicyName="scalable"
        )
        assert f"scalable/{account.id}/*" in str(policy["PolicyDocument"])
        await cloud.clean({CLUSTER: account.id})

    run(test)
