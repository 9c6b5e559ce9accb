"""Requests, tags and states of AWS, without AWS."""

import base64
import datetime as dt
import json
import re
import subprocess

import pytest

from scalable.errors import ProviderError
from scalable.model import ComponentSpec, DeploymentSpec
from scalable.providers.aws import instances, names, render, roles
from scalable.providers.aws.api import Identity, refusal
from scalable.providers.aws.cloud import objects
from scalable.providers.aws.network import NetworkIds, rules
from scalable.providers.aws.options import AWSOptions
from scalable.providers.aws.provider import findings
from scalable.providers.aws.secrets import LIMIT, packed, unpacked
from scalable.providers.aws.shapes import is_arm
from scalable.providers.remote.cloud import CLUSTER, NAME, ROLE, TAG, MachineRequest, MachineState

GROUND = NetworkIds({"s-a": "z-a", "s-b": "z-b", "s-c": "z-b"}, ("in",), ("in", "out"), True)


def request(**fields):
    own = {
        "marks": {CLUSTER: "c1", ROLE: "workers", TAG: "prep"},
        "program": ("workers", "--preload=/a b", "u1", "u2"),
        "files": "workers",
        "cpus": 1,
        "memory_bytes": 2**31,
        "units": ("u1", "u2"),
        "image": "docker://site/image:1",
        "environment": {"TEXT": "a 'b' $c"},
    }
    return MachineRequest("u1", **(own | fields))


def spec(options=None, **component):
    given = AWSOptions(region="us-east-1", **(options or {})).model_dump()
    parts = {"a": ComponentSpec("a", **component)}
    return DeploymentSpec(
        "p", "t", "aws", parts, options=given, written_options=tuple(options or ())
    )


@pytest.mark.parametrize(("arn", "owner"), [
    ("arn:aws:iam::1:user/alice", "arn:aws:iam::1:user/alice"),
    ("arn:aws:sts::1:assumed-role/SSO/bob@x.org", "arn:aws:sts::1:assumed-role/SSO/bob@x.org"),
    ("arn:aws:sts::1:assumed-role/R/botocore-session-17", "arn:aws:sts::1:assumed-role/R"),
    ("arn:aws:sts::1:assumed-role/R/i-0a1b2c", "arn:aws:sts::1:assumed-role/R"),
    ("arn:aws:iam::1:root", "arn:aws:iam::1:root"),
])  # fmt: skip
def test_an_owner_is_a_user_or_a_role_whose_sessions_are_no_users(arn, owner):
    assert names.owner_of(arn) == owner


def test_names_of_units_go_through_tags_in_their_order():
    units = tuple(f"a-rather-long-name-of-a-unit-{i}" for i in range(30))
    tags = names.unit_tags(units)
    assert max(map(len, tags.values())) <= 256
    assert names.units_in({**tags, "other": "x"}) == units
    assert names.unit_tags(()) == {}
    assert names.marks_in({**tags, CLUSTER: "c", "scalable-made": "1", "Name": "n"}) == {
        CLUSTER: "c"
    }


def test_equal_machines_share_a_task_definition_that_has_no_secret_in_it():
    frame = render.TaskFrame("us-east-1", "execution", None, "arn:secret")
    one = render.task_definition(request(), frame, (1024, 2048))
    other = render.task_definition(
        request(units=("v",), program=("workers", "v")), frame, (1024, 2048)
    )
    assert names.content_name("c1", "prep", one) == names.content_name("c1", "prep", other)
    (container,) = one["containerDefinitions"]
    assert container["secrets"] == [{"name": "SCALABLE_FILES", "valueFrom": "arn:secret"}]
    assert container["image"] == "site/image:1"
    assert "taskRoleArn" not in one
    changed = render.task_definition(request(image="other"), frame, (1024, 2048))
    assert names.content_name("c1", "prep", changed) != names.content_name("c1", "prep", one)


def test_a_task_is_tried_anywhere_and_then_in_each_zone_with_a_token_for_each():
    places = render.places(("s-a", "s-b"), spot=True)
    assert [p.subnets for p in places] == [("s-a", "s-b"), ("s-a",), ("s-b",)]
    assert {p.provider for p in places} == {"FARGATE_SPOT"}
    orders = [render.run_task(request(), p, "d", "c", ["g"], public=True) for p in places]
    tokens = {order["clientToken"] for order in orders}
    assert len(tokens) == 3
    assert all(len(each) <= 64 for each in tokens)
    again = render.run_task(request(), places[0], "d", "c", ["g"], public=True)
    assert again == orders[0]
    (override,) = orders[0]["overrides"]["containerOverrides"]
    assert override["environment"] == [{"name": "SCALABLE_SPOT", "value": "1"}]
    assert override["command"][-2:] == ["u1", "u2"]


def test_a_fleet_has_one_subnet_of_each_zone_and_the_types_in_their_order():
    order = instances.fleet(request(), "t", ["m6i.large", "m7i.large"], GROUND, "lowest-price")
    overrides = order["LaunchTemplateConfigs"][0]["Overrides"]
    assert [o["InstanceType"] for o in overrides] == ["m6i.large"] * 2 + ["m7i.large"] * 2
    assert {o["SubnetId"] for o in overrides} == {"s-a", "s-b"}
    assert [o["Priority"] for o in overrides] == [0.0, 0.0, 1.0, 1.0]
    assert order["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "on-demand"


def test_the_script_of_an_instance_is_a_script_and_quotes_what_it_is_given(tmp_path):
    frame = instances.InstanceFrame("us-east-1", "ami-1", "profile", "arn:secret")
    data = instances.launch_template(request(), frame, GROUND)
    text = base64.b64decode(data["UserData"]).decode()
    path = tmp_path / "script"
    path.write_text(text)
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert "u1" not in text
    assert "'--preload=/a b'" in text
    assert "a '\"'\"'b'\"'\"' $c" in text
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    ecr = render.Container("c", "r", "1.dkr.ecr.eu-west-1.amazonaws.com/x:1", ["p"], {})
    assert "--region eu-west-1" in render.script(ecr)


def test_an_environment_that_is_too_long_for_user_data_is_an_error():
    large = render.Container("c", "r", "i", ["p"], {"A": "x" * 20_000})
    with pytest.raises(ProviderError, match="EC2 accepts 16384"):
        render.user_data(large)


@pytest.mark.parametrize(
    ("text", "end"), [("", (None, False)), ("3 false\n", (3, False)), ("137 true\n", (137, True))]
)
def test_the_end_of_a_program_is_read_from_its_log(text, end):
    assert render.end_in(text) == end


def test_files_fit_a_secret_or_are_refused_with_the_largest():
    files = {"a": "x" * 10**6, "b": "y"}
    assert unpacked(packed(files, "n")) == files
    import secrets

    with pytest.raises(ProviderError, match=f"holds {LIMIT}; the largest is big") as caught:
        packed({"small": "x", "big": secrets.token_hex(80_000)}, "n")
    assert caught.value.hint
    with pytest.raises(ProviderError, match="does not contain the files"):
        unpacked("no such text")


def task(**fields):
    return {"taskArn": "arn:t", "lastStatus": "STOPPED", "memory": "512", **fields}


@pytest.mark.parametrize(("fields", "words", "outside", "memory"), [
    ({"stopCode": "SpotInterruption"}, "spot", True, False),
    ({"stopCode": "UserInitiated", "stoppedReason": "x"}, "stopped: x", True, False),
    ({"stopCode": "EssentialContainerExited", "containers": [{"exitCode": 2}]}, "exit code 2", False, False),
    ({"containers": [{"exitCode": 137, "reason": "OutOfMemoryError: Container killed"}]}, "512 MiB", False, True),
    (
        {
            "stopCode": "TaskFailedToStart",
            "containers": [{"reason": "CannotPullContainerError: no"}],
        },
        "CannotPullContainerError",
        False,
        False,
    ),
    (
        {
            "stopCode": "TaskFailedToStart",
            "stoppedReason": "Capacity is unavailable at this time",
        },
        "no capacity",
        True,
        False,
    ),
])  # fmt: skip
def test_the_end_of_a_task_says_why(fields, words, outside, memory):
    machine = render.task_machine(task(**fields), {})
    assert machine.state is MachineState.ENDED
    assert words in machine.reason
    assert (machine.from_outside, machine.out_of_memory) == (outside, memory)


def test_the_states_of_instances():
    def machine(state, code=""):
        told = {"InstanceId": "i-1", "State": {"Name": state}, "StateReason": {"Code": code}}
        told["LaunchTime"] = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        return render.instance_machine(told, {NAME: "n"})

    assert machine("pending").state is MachineState.PENDING
    assert machine("running").state is MachineState.RUNNING
    assert machine("shutting-down").state is MachineState.ENDING
    own = machine("terminated", "Client.InstanceInitiatedShutdown")
    assert (own.state, own.from_outside) == (MachineState.ENDED, False)
    assert machine("terminated", "Server.SpotInstanceTermination").from_outside


@pytest.mark.parametrize("reason", ["RESOURCE:MEMORY", "Capacity is unavailable at this time."])
def test_reasons_of_capacity_are_known_and_said_in_words(reason):
    assert render.lacks_capacity(reason)
    assert render.in_words(reason)[-1] != "."
    assert not render.lacks_capacity("MISSING")


@pytest.mark.parametrize(("code", "transient", "words"), [
    ("ThrottlingException", True, "ecs:RunTask"),
    ("ServerException", True, "ServerException"),
    ("ExpiredTokenException", False, "have expired"),
    ("UnrecognizedClientException", False, "credentials are wrong"),
    ("AccessDeniedException", False, "may not ecs:RunTask"),
    ("ClientException", False, "ClientException: text"),
])  # fmt: skip
def test_errors_of_aws_are_one_line_and_say_whether_to_try_again(code, transient, words):
    error = refusal(
        {"Error": {"Code": code, "Message": "text\n Encoded authorization failure message: x"}},
        "ecs:RunTask",
    )
    assert error.transient is transient
    assert words in error.message
    assert "\n" not in error.message
    assert "Encoded" not in error.message


def test_only_the_scheduler_opens_ports_and_only_to_clients():
    assert rules("inside", "g", ["0.0.0.0/0"]) == [
        {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "g"}]}
    ]
    opened = rules("clients", "g", ["10.0.0.0/8", "::/0"])
    assert [(r["FromPort"], r["ToPort"]) for r in opened] == [(8786, 8786), (8788, 8788)]
    assert opened[0]["Ipv6Ranges"] == [{"CidrIpv6": "::/0"}]


def test_policies_are_limited_to_the_cluster():
    scope = roles.Scope(Identity("1", "arn:aws-cn:iam::1:user/a"), "r", "c1")
    secrets = "arn:aws-cn:secretsmanager:r:1:secret:scalable/c1/*"
    statements = json.loads(roles.execution_policy(scope))["Statement"]
    assert statements[0]["Resource"] == secrets
    manager = json.loads(roles.manager_policy(scope, ["arn:given"]))["Statement"]
    passed = next(s for s in manager if s["Action"] == ["iam:PassRole"])
    assert passed["Resource"] == ["arn:aws-cn:iam::1:role/scalable/c1/*", "arn:given"]
    assert len(roles.role_name("x" * 36, "ec2-scheduler")) <= 64
    # EC2 and ECS take no more than these.
    assert len(roles.manager_policy(scope)) < 10_240


@pytest.mark.parametrize(("options", "component", "code", "words"), [
    ({}, {"gpus": 1}, "E_BAD_OPTION", "no GPUs"),
    ({}, {"cpus": 64}, "E_BAD_OPTION", "largest size"),
    ({"zones": ("eu-west-1a",)}, {}, "E_BAD_OPTION", "not in region"),
    ({"clients_from": ("here",)}, {}, "E_BAD_OPTION", "CIDR"),
    ({"task_role_arn": "admin"}, {}, "E_BAD_OPTION", "ARN"),
    ({"logs_kept_days": 8}, {}, "E_BAD_OPTION", "8 days"),
    ({"instance_type": "m6i.large"}, {}, "W_NOT_APPLIED", "cluster_type: ec2"),
    ({"cluster_type": "ec2", "instance_type": "m6i.large"}, {"cpus": 8}, "E_BAD_OPTION", "small"),
    ({}, {"mounts": {"/a": "/b"}}, "W_NOT_APPLIED", "mounts"),
])  # fmt: skip
def test_faults_of_a_target_are_found_without_a_request(options, component, code, words):
    found = findings(spec(options, **component))
    assert [d.code for d in found] == [code]
    assert words in f"{found[0].message} {found[0].hint}"


@pytest.mark.parametrize("kind", ["fargate", "ec2"])
def test_a_plan_shows_every_request_without_asking(kind):
    options = {"cluster_type": kind, "disk": "80GiB"}
    made = objects(spec(options, cpus=1, memory="2G"), {"a": 2}, "name")
    for text in made.values():
        json.loads(text)
    assert {"security-group-inside.json", "role-manager.json"} <= made.keys()
    file = "task-definition-a.json" if kind == "fargate" else "launch-template-a.json"
    assert re.search(rb'"(VolumeSize|sizeInGiB)": 80\b', made[file])


@pytest.mark.parametrize(
    ("name", "arm"), [("m6g.large", True), ("c7gn.xlarge", True), ("g5.xlarge", False), ("t4g.small", True), ("m6i.large", False)]
)  # fmt: skip
def test_the_architecture_of_a_type_is_in_its_name(name, arm):
    assert is_arm(name) is arm
