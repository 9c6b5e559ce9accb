"""The AWS test bed runs EC2 instances for a client library that knows nothing of it."""

import base64
import contextlib

import pytest

pytest.importorskip("boto3")
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError
from on_aws import LOGS, Client, until

METADATA = "http://169.254.169.254/latest"
SPOT = {"MarketType": "spot"}
#: Waits in a container for SIGTERM, with some seconds of work after it.
CONTAINER = f"""#!/bin/sh
docker run --rm --network host --log-driver awslogs --log-opt awslogs-group={LOGS} \\
  --log-opt awslogs-stream=$(hostname) image python -c '
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("told to go", flush=True)))
print("here", flush=True)
time.sleep(600)
'
"""


@pytest.fixture(scope="module")
def aws(aws_bed):
    aws_bed.settings(delay=0.02)
    return Client(aws_bed).furnish_instances()


@pytest.fixture(autouse=True)
def no_faults(aws_bed):
    yield
    aws_bed.clear()


def lines(aws, stream):
    """Return the lines of a log stream."""
    with contextlib.suppress(aws.logs.exceptions.ResourceNotFoundException):
        found = aws.logs.get_log_events(logGroupName=LOGS, logStreamName=stream, startFromHead=True)
        return [event["message"] for event in found["events"]]
    return []


# User data ----------------------------------------------------------------------------------------


def test_user_data_runs_and_asks_the_metadata_service_with_a_token(aws):
    script = f"""#!/bin/sh
curl -s -o /dev/null -w "without: %{{http_code}}\\n" {METADATA}/meta-data/instance-id
token=$(curl -s -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" {METADATA}/api/token)
ask() {{ curl -s -H "X-aws-ec2-metadata-token: $token" {METADATA}/meta-data/$1; echo; }}
ask instance-id; ask tags/instance/name; ask placement/region; ask iam/security-credentials/
curl -s -o /dev/null -w "notice: %{{http_code}}\\n" -H "X-aws-ec2-metadata-token: $token" {METADATA}/meta-data/spot/instance-action
"""
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "name", "Value": "first"}]}]
    options = {"InstanceMetadataTags": "enabled"}
    name = aws.launch(script, TagSpecifications=tags, MetadataOptions=options)
    console = aws.console(name, "Cloud-init finished").splitlines()
    assert console[:6] == [
        "without: 401",
        name,
        "first",
        "us-east-1",
        "instances",
        "notice: 404",
    ]
    assert aws.instance(name)["Tags"] == [{"Key": "name", "Value": "first"}]
    aws.ec2.terminate_instances(InstanceIds=[name])


def test_a_container_has_its_environment_its_volumes_the_role_and_no_other_files(aws):
    code = "import os, boto3; print(os.environ['WORD'], open('/in/file').read().strip(), os.path.exists('/etc/secret'), boto3.client('sts', 'us-east-1').get_caller_identity()['Arn'])"
    config = f"""#cloud-config
write_files:
  - path: /etc/secret
    permissions: "0600"
    content: WORD=sesame
  - path: /var/lib/given/file
    encoding: b64
    content: {base64.b64encode(b"text").decode()}
runcmd:
  - [docker, run, --rm, --network, host, --env-file, /etc/secret, -v, "/var/lib/given:/in:ro", image, python, -c, "{code}"]
"""
    name = aws.launch(config)
    console = aws.console(name, "Cloud-init finished")
    arn = f"arn:aws:sts::123456789012:assumed-role/instances/{name}"
    assert console.startswith(f"sesame text False {arn}\n")
    aws.ec2.terminate_instances(InstanceIds=[name])


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


def test_a_terminated_instance_ends_its_container_and_leaves_nothing(aws, aws_bed):
    name = aws.launch(CONTAINER)
    stream = aws.becomes(name, "running")["PrivateDnsName"].partition(".")[0]
    until(lambda: "here" in lines(aws, stream), "the container runs")
    interface = aws.instance(name)["NetworkInterfaces"][0]["NetworkInterfaceId"]
    answer = aws.ec2.terminate_instances(InstanceIds=[name])
    assert answer["TerminatingInstances"][0]["CurrentState"]["Name"] == "shutting-down"
    gone = aws.becomes(name, "terminated")
    assert gone["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert lines(aws, stream) == ["here", "told to go"]
    with pytest.raises(ClientError, match="NotFound"):
        aws.ec2.describe_network_interfaces(NetworkInterfaceIds=[interface])
    assert name not in {machine["id"] for machine in aws_bed.machines()}


@pytest.mark.parametrize(("behavior", "state"), [("terminate", "terminated"), ("stop", "stopped")])
def test_an_instance_that_shuts_itself_down_ends_as_it_was_ordered(aws, behavior, state):
    name = aws.launch("#!/bin/sh\nshutdown -h now\n", InstanceInitiatedShutdownBehavior=behavior)
    reason = aws.becomes(name, state)["StateReason"]["Code"]
    assert reason == "Client.InstanceInitiatedShutdown"
    if state == "stopped":
        aws.ec2.terminate_instances(InstanceIds=[name])
        aws.becomes(name, "terminated")


def test_a_spot_instance_has_its_notice_before_its_end(aws, aws_bed):
    script = f"""#!/bin/sh
token=$(curl -s -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 600" {METADATA}/api/token)
until curl -s -f -H "X-aws-ec2-metadata-token: $token" {METADATA}/meta-data/spot/instance-action
do echo here; sleep 0.1; done
"""
    name = aws.launch(script, InstanceMarketOptions=SPOT)
    aws.console(name, "here")
    assert aws.instance(name)["InstanceLifecycle"] == "spot"
    aws_bed.interrupt(name, notice_s=3)
    assert '{"action": "terminate", "time": "' in aws.console(name, "action")
    assert aws.instance(name)["State"]["Name"] == "running"
    reason = aws.becomes(name, "terminated")["StateReason"]["Code"]
    assert reason == "Server.SpotInstanceTermination"


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


def test_a_fleet_takes_the_next_type_and_zone_that_have_capacity(aws, aws_bed):
    template = aws.ec2.create_launch_template(
        LaunchTemplateName="fleet",
        LaunchTemplateData={"ImageId": aws.image, "UserData": base64.b64encode(b"#!").decode()},
    )["LaunchTemplate"]["LaunchTemplateId"]
    subnets = {s["AvailabilityZone"]: s["SubnetId"] for s in aws.ec2.describe_subnets()["Subnets"]}
    aws_bed.no_capacity(type="c5.*")
    aws_bed.no_capacity(zone="us-east-1a")
    overrides = [
        {"InstanceType": "c5.large", "SubnetId": subnets["us-east-1b"]},
        {"InstanceType": "m5.large", "SubnetId": subnets["us-east-1a"]},
        {"InstanceType": "m5.large", "SubnetId": subnets["us-east-1b"]},
    ]
    specification = {"LaunchTemplateId": template, "Version": "$Latest"}
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "in", "Value": "fleet"}]}]
    answer = aws.ec2.create_fleet(
        Type="instant",
        LaunchTemplateConfigs=[
            {"LaunchTemplateSpecification": specification, "Overrides": overrides}
        ],
        TargetCapacitySpecification={
            "TotalTargetCapacity": 2,
            "DefaultTargetCapacityType": "spot",
        },
        TagSpecifications=tags,
    )
    assert [e["ErrorCode"] for e in answer["Errors"]] == ["InsufficientInstanceCapacity"] * 2
    (made,) = answer["Instances"]
    assert (made["InstanceType"], made["Lifecycle"], len(made["InstanceIds"])) == (
        "m5.large",
        "spot",
        2,
    )
    found = aws.ec2.describe_instances(Filters=[{"Name": "tag:in", "Values": ["fleet"]}])
    zones = {
        i["Placement"]["AvailabilityZone"] for r in found["Reservations"] for i in r["Instances"]
    }
    assert zones == {"us-east-1b"}
    aws.ec2.terminate_instances(InstanceIds=made["InstanceIds"])


def test_an_instance_that_never_boots_is_running_and_does_nothing(aws, aws_bed):
    aws_bed.startup("ec2:t3.micro", times=1, never=True)
    name = aws.launch("#!/bin/sh\necho user data\n")
    aws.becomes(name, "running")
    assert "user data" not in aws.console(name, "cloud-init")
    aws.ec2.terminate_instances(InstanceIds=[name])
    aws.becomes(name, "terminated")
