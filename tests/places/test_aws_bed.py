"""The AWS test bed runs Fargate tasks for a client library that knows nothing of it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("boto3")
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError
from on_aws import CLUSTER, Client, until

WAITS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("told to go", flush=True)))
print("here", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def aws(aws_bed):
    aws_bed.settings(delay=0.02)
    return Client(aws_bed).furnish()


@pytest.fixture(autouse=True)
def no_faults(aws_bed):
    yield
    aws_bed.clear()


@pytest.fixture(scope="module")
def waits(aws):
    return aws.define("waits", WAITS)


def here(aws, arn):
    return until(lambda: "here" in aws.log(arn), "the task runs")


# A task -------------------------------------------------------------------------------------------


def test_a_secret_that_the_execution_role_may_not_read_keeps_the_task_from_starting(aws):
    secret = aws.secretsmanager.create_secret(Name="hidden", SecretString="x")["ARN"]
    container = {"secrets": [{"name": "X", "valueFrom": secret}]}
    role = aws.make_role("poor")
    arn = aws.run(aws.define("poor", "", container=container, executionRoleArn=role))
    task = aws.reaches(arn, "STOPPED")
    assert task["stopCode"] == "TaskFailedToStart"
    assert "AccessDeniedException" in task["stoppedReason"]


def test_a_task_has_the_credentials_of_its_role_and_of_no_other(aws):
    code = """
import boto3
print(boto3.client("sts").get_caller_identity()["Arn"])
try:
    boto3.client("ecs").list_clusters()
except Exception as error:
    print(error)
"""
    arn = aws.run(aws.define("asks", code))
    aws.reaches(arn, "STOPPED")
    own, denied = aws.log(arn)
    assert own == f"arn:aws:sts::123456789012:assumed-role/tasks/{arn.rpartition('/')[2]}"
    assert "not authorized to perform: ecs:ListClusters" in denied


def test_a_task_does_not_see_the_files_of_this_machine(aws, tmp_path):
    (tmp_path / "file").write_text("text")
    code = (
        f"import os; print(os.path.exists({str(tmp_path)!r}), os.path.exists({str(Path.cwd())!r}))"
    )
    arn = aws.run(aws.define("looks", code))
    aws.reaches(arn, "STOPPED")
    assert aws.log(arn) == ["False False"]


# Ends ---------------------------------------------------------------------------------------------


# Rules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"cpu": "256", "memory": "8192"}, "No Fargate configuration exists"),
        ({"networkMode": "bridge"}, "only supports network mode 'awsvpc'"),
        ({"container": {"stopTimeout": 121}}, "stopTimeout is 120 seconds at most"),
        ({"executionRoleArn": "arn:aws:iam::123456789012:role/none"}, "Role is not valid"),
    ],
)
def test_task_definitions_that_fargate_cannot_run_are_refused(aws, fields, text):
    with pytest.raises(ClientError, match=text):
        aws.define("wrong", "", **fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"count": 11}, "must be between 1 and 10"),
        ({"tags": [{"key": "k" * 129, "value": ""}]}, "128"),
        ({"tags": [{"key": f"k{n}", "value": ""} for n in range(51)]}, "50"),
        ({"cluster": "none"}, "Cluster not found"),
        ({"capacityProviderStrategy": [{"capacityProvider": "none"}]}, "not associated"),
    ],
)
def test_calls_of_run_task_that_ecs_refuses_are_refused(aws, waits, fields, text):
    with pytest.raises(ClientError, match=text):
        aws.ecs.run_task(**aws.order(waits, **fields))


def test_a_field_that_the_service_does_not_know_is_refused(aws):
    ecs = aws.client("ecs")

    def add(params, **_):
        params["body"] = b'{"cluster": "bed", "colour": "green"}'

    ecs.meta.events.register("before-call.ecs.ListTasks", add)
    with pytest.raises(ClientError, match="colour"):
        ecs.list_tasks(cluster=CLUSTER)


# Faults -------------------------------------------------------------------------------------------


def test_an_answer_that_is_lost_leaves_the_task_that_was_made(aws, aws_bed, waits):
    once = aws.client("ecs", config=Config(retries={"total_max_attempts": 1}))
    aws_bed.lose_answer("ecs:RunTask")
    order = aws.order(waits, clientToken="lost", startedBy="lost")
    with pytest.raises(ConnectionClosedError):
        once.run_task(**order)
    (found,) = aws.ecs.list_tasks(cluster=CLUSTER, startedBy="lost")["taskArns"]
    assert once.run_task(**order)["tasks"][0]["taskArn"] == found
    aws.ecs.stop_task(cluster=CLUSTER, task=found)


def test_every_third_call_is_throttled(aws, aws_bed):
    once = aws.client("ecs", config=Config(retries={"total_max_attempts": 1}))
    aws_bed.throttle("ecs:*", every=3)
    aws_bed.calls(reset=True)
    codes = []
    for _ in range(6):
        try:
            once.list_clusters()
            codes.append("")
        except ClientError as error:
            codes.append(error.response["Error"]["Code"])
    assert codes == ["", "", "ThrottlingException"] * 2
    assert aws_bed.calls() == {"ecs:ListClusters": 6}


def test_credentials_that_are_wrong_or_over_are_refused(aws, aws_bed):
    wrong = aws.client("ecs", aws_session_token="none")
    with pytest.raises(ClientError, match="UnrecognizedClientException"):
        wrong.list_clusters()
    forged = Client(aws_bed)
    forged.variables = forged.variables | {"AWS_SECRET_ACCESS_KEY": "forged"}
    with pytest.raises(ClientError, match="InvalidSignatureException"):
        forged.ecs.list_clusters()
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        forged.ec2.describe_vpcs()
    session = Client(aws_bed)
    session.variables = aws_bed.session("bob", seconds=1)
    token = session.variables["AWS_SESSION_TOKEN"]
    sts = session.client("sts", aws_session_token=token)
    assert sts.get_caller_identity()["Arn"] == "arn:aws:iam::123456789012:user/bob"

    def over():
        try:
            sts.get_caller_identity()
        except ClientError as error:
            return "ExpiredToken" in str(error)

    until(over, "the credentials end")


def test_a_new_task_is_found_after_a_while(aws, aws_bed, waits):
    aws_bed.settings(eventual=1.0)
    try:
        arn = aws.run(waits, startedBy="late")
        assert aws.ecs.list_tasks(cluster=CLUSTER, startedBy="late")["taskArns"] == []
        missing = aws.ecs.describe_tasks(cluster=CLUSTER, tasks=[arn])["failures"]
        assert [failure["reason"] for failure in missing] == ["MISSING"]
        until(lambda: aws.ecs.list_tasks(cluster=CLUSTER, startedBy="late")["taskArns"], "it comes")
    finally:
        aws_bed.settings(eventual=0.0)
    aws.ecs.stop_task(cluster=CLUSTER, task=arn)


def test_security_groups_say_who_reaches_a_task(aws, aws_bed, waits):
    vpc = aws.ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = aws.ec2.create_security_group(GroupName="port", Description="d", VpcId=vpc)["GroupId"]
    tcp = {"IpProtocol": "tcp", "FromPort": 8786, "ToPort": 8786}
    aws.ec2.authorize_security_group_ingress(
        GroupId=group, IpPermissions=[{**tcp, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    )
    network = {"subnets": aws.subnets[:1], "securityGroups": [group], "assignPublicIp": "ENABLED"}
    arn = aws.run(waits, networkConfiguration={"awsvpcConfiguration": network})
    closed = aws.run(waits)
    for one in (arn, closed):
        here(aws, one)
    assert aws_bed.reaches(None, arn, 8786)
    assert aws_bed.reaches(closed, arn, 8786)
    assert not aws_bed.reaches(None, arn, 8787)
    assert not aws_bed.reaches(None, closed, 8786)
    with pytest.raises(ClientError, match="DependencyViolation"):
        aws.ec2.delete_security_group(GroupId=group)
    for one in (arn, closed):
        aws.ecs.stop_task(cluster=CLUSTER, task=one)
        aws.reaches(one, "STOPPED")
    aws.ec2.delete_security_group(GroupId=group)


def test_a_connection_that_security_groups_forbid_is_told(aws, aws_bed):
    serves = """
import socket, time
s = socket.create_server(("0.0.0.0", 8786))
print("here", flush=True)
kept = [s.accept() for _ in range(2)]
time.sleep(600)
"""
    server = aws.run(aws.define("serves", serves, container={"stopTimeout": 2}))
    address = aws.reaches(server, "RUNNING")["containers"][0]["networkInterfaces"][0]
    address = address["privateIpv4Address"]
    here(aws, server)
    calls = f"import socket, time; s = socket.create_connection(({address!r}, 8786)); print('here', flush=True); time.sleep(600)"
    caller = aws.run(aws.define("calls", calls, container={"stopTimeout": 2}))
    here(aws, caller)
    with socket.create_connection((address, 8786), timeout=30):
        found = [c for c in aws_bed.connections() if c["target"] == server]
    told = {"target": server, "port": 8786}
    inside = {**told, "source": caller, "allowed": True}  # both are of the default group
    assert sorted(found, key=lambda c: str(c["source"])) == [
        {**told, "source": None, "allowed": False},
        inside,
    ]
    for one in (server, caller):
        aws.ecs.stop_task(cluster=CLUSTER, task=one)


def test_a_role_is_known_after_a_while(aws, aws_bed, waits):
    aws_bed.settings(eventual=1.5)
    try:
        overrides = {"taskRoleArn": aws.make_role("new")}
        order = aws.order(waits, overrides=overrides, clientToken="new", startedBy="new")
        with pytest.raises(ClientError, match="unable to assume the role"):
            aws.ecs.run_task(**order)

        def runs():
            with contextlib.suppress(ClientError):
                return aws.ecs.run_task(**order)["tasks"][0]["taskArn"]

        arn = until(runs, "the role is known")
    finally:
        aws_bed.settings(eventual=0.0)
    until(lambda: aws.ecs.list_tasks(cluster=CLUSTER, startedBy="new")["taskArns"], "it comes")
    here(aws, arn)
    aws.ecs.stop_task(cluster=CLUSTER, task=arn)


# The test bed's own end ---------------------------------------------------------------------------


def test_nothing_is_left_of_a_test_bed_whose_process_is_told_to_go():
    code = f"""
import os, signal, sys
sys.path[:0] = [{str(Path(__file__).parents[1])!r}, {str(Path(__file__).parent)!r}]
from aws_bed import AwsBed
from on_aws import Client
with AwsBed() as bed:
    bed.settings(delay=0.02)
    aws = Client(bed).furnish()
    aws.reaches(aws.run(aws.define("waits", "import time; time.sleep(600)")), "RUNNING")
    pids = [pid for machine in bed.machines() for pid in machine["pids"]]
    print(bed.directory, bed.process.pid, *pids, flush=True)
    sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    directory, bed, *pids = process.stdout.readline().split()
    assert pids
    os.kill(int(bed), signal.SIGTERM)
    until(lambda: not any(Path("/proc", pid).exists() for pid in pids), "the tasks' end")
    until(lambda: not Path(directory).exists(), "the directory's end")
    process.communicate("")
