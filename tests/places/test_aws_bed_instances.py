"""The AWS test bed runs EC2 instances for a client library that knows nothing of it."""

import pytest

pytest.importorskip("boto3")
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError
from on_aws import Client


@pytest.fixture(scope="module")
def aws(aws_bed):
    aws_bed.settings(delay=0.02)
    return Client(aws_bed).furnish_instances()


@pytest.fixture(autouse=True)
def no_faults(aws_bed):
    yield
    aws_bed.clear()


# User data ----------------------------------------------------------------------------------------


def test_a_container_that_needs_more_memory_than_the_instance_has_is_killed(aws):
    script = """#!/bin/sh
docker run --name big --network host image python -c "
x = b'x' * 2**30
import time; time.sleep(600)"
echo "code $? $(docker inspect -f '{{.State.OOMKilled}}' big)"
"""
    name = aws.launch(script, type_="t3.nano")
    assert "code 137 true" in aws.console(name, "code")
    aws.ec2.terminate_instances(InstanceIds=[name])


# Ends ---------------------------------------------------------------------------------------------


# Rules and faults ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"UserData": "#!" + "x" * 16384}, "limited to 16384 bytes"),
        ({"IamInstanceProfile": {"Name": "none"}}, "Invalid IAM Instance Profile"),
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"InstanceType": "t3.huge"}, "InvalidParameterValue"),
        ({"SubnetId": "subnet-0123"}, "InvalidSubnetID.NotFound"),
    ],
)
def test_launches_that_ec2_refuses_are_refused(aws, fields, text):
    with pytest.raises(ClientError, match=text):
        aws.launch("", **fields)


def test_a_user_who_may_not_pass_the_role_launches_nothing(aws, aws_bed):
    aws_bed.deny("alice", "iam:PassRole")
    with pytest.raises(ClientError, match="iam:PassRole"):
        aws.launch("")
    aws_bed.deny("alice", "iam:PassRole", allow=True)


def test_a_parameter_that_the_service_does_not_know_is_refused(aws):
    ec2 = aws.client("ec2")
    ec2.meta.events.register(
        "before-call.ec2.DescribeVpcs", lambda params, **_: params["body"].update(Colour="green")
    )
    with pytest.raises(ClientError, match="UnknownParameter.*Colour"):
        ec2.describe_vpcs()


def test_a_launch_whose_answer_is_lost_is_found_by_its_client_token(aws, aws_bed):
    once = Client(aws_bed)
    once.image = aws.image
    once.made["ec2"] = once.client("ec2", config=Config(retries={"total_max_attempts": 1}))
    aws_bed.lose_answer("ec2:RunInstances")
    with pytest.raises(ConnectionClosedError):
        once.launch("", ClientToken="lost")
    assert once.launch("", ClientToken="lost") == once.launch("", ClientToken="lost")
    found = aws.ec2.describe_instances(Filters=[{"Name": "client-token", "Values": ["lost"]}])
    (instance,) = [i for r in found["Reservations"] for i in r["Instances"]]
    aws.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])


def test_an_instance_that_never_boots_is_running_and_does_nothing(aws, aws_bed):
    aws_bed.startup("ec2:t3.micro", times=1, never=True)
    name = aws.launch("#!/bin/sh\necho user data\n")
    aws.becomes(name, "running")
    assert "user data" not in aws.console(name, "cloud-init")
    aws.ec2.terminate_instances(InstanceIds=[name])
    aws.becomes(name, "terminated")
