"""Pure parts of the gcp provider: names, scripts, bodies, refusals, rules, payloads, sizes."""

import dataclasses
import json
import shutil
import subprocess

import pytest

from scalable.model import ComponentSpec, DeploymentSpec
from scalable.model.components import WorkerRange
from scalable.model.prices import Shape
from scalable.providers.gcp import instances, names, network, secrets
from scalable.providers.gcp.api import no_credentials, refusal
from scalable.providers.gcp.cloud import left_of, metrics_of
from scalable.providers.gcp.config import Config, candidates, config_of, units_on
from scalable.providers.gcp.instances import (
    Attempt,
    FailureKind,
    LaunchFailure,
    Tried,
    failure_of,
    instance_body,
    machine_of,
)
from scalable.providers.gcp.provider import findings
from scalable.providers.remote.cloud import (
    CLUSTER,
    MANAGING,
    NAME,
    ROLE,
    SCHEDULER,
    WORKERS,
    MachineRequest,
    MachineState,
)

CONFIG = Config(region="us-central1")


def request(role=WORKERS, **fields):
    marks = {CLUSTER: "c-1", ROLE: role, "scalable-owner": "Ann@X.org"}
    own = {"cpus": 1, "memory_bytes": 2**30, "files": "f", "image": "any/image:1"}
    return MachineRequest("Unit 1", marks, ("workers", "a b"), **own | fields)


def items(body):
    return {item["key"]: item["value"] for item in body["metadata"]["items"]}


# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a", "A", "a" * 90, "x_y", "é", "ends-", "9"])
def test_names_of_instances_are_valid_and_differ(text):
    name = names.resource_name(text)
    assert names._NAME.fullmatch(name), name
    others = {names.resource_name(t) for t in (text, text + "b", text.upper() + "!")}
    assert len(others) == 3


def test_labels_are_valid_and_texts_that_do_not_fit_have_a_checksum():
    found = names.labels({"scalable-owner": "Ann@X.org", "Bad key": "x", "scalable-tag": "a_b"})
    assert found == {
        "scalable-owner": "ann-x-org-" + found["scalable-owner"][-8:],
        "scalable-tag": "a_b",
    }
    assert names.label_value("ann-x-org") != names.label_value("Ann@X.org")
    assert names.label_filter({"b": "2", "a": "1"}) == '(labels.a="1") (labels.b="2")'


# Scripts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("leaves", [True, False])
def test_the_startup_script_is_one_that_bash_reads(gpus, leaves):
    script = instances.startup_script(
        "a/b:1", ["python3", "-m", "x", "it's"], {"A": "1 '2' $HOME"}, gpus=gpus, leaves=leaves
    )
    subprocess.run([shutil.which("bash"), "-n"], input=script, text=True, check=True)
    assert ("cos-extensions" in script) == bool(gpus)
    assert ("delete_this_machine &&" in script) == leaves


def test_output_is_told_apart_from_what_else_is_on_the_console():
    console = (
        "[ 1.0] kernel: scalable things\r\nscalable: starting\r\n"
        "Nov 22 host x[1]: startup-script: scalable| said | by a call\r\nnoise\n"
    )
    assert instances.program_output(console) == "[machine] starting\nsaid | by a call\n"
    assert instances.parse_end("137 out-of-memory") == (137, True)
    assert instances.parse_end("0 ") == (0, False)
    assert instances.parse_end("what") == (None, False)


# Instances ----------------------------------------------------------------------------------------


def test_a_worker_s_machine_names_its_files_and_holds_no_secret():
    body = instance_body(request(units=("a b",)), CONFIG, Attempt("us-central1-b", "e2-standard-2"))
    found = items(body)
    assert json.loads(found["scalable-marks"])[NAME] == "Unit 1"
    assert found["scalable-files"] == names.secret_id("f")
    assert "scalable.clusters.programs.machine gcp workers 'a b'" in found["startup-script"]
    assert body["machineType"] == "zones/us-central1-b/machineTypes/e2-standard-2"
    assert body["scheduling"] == {"automaticRestart": False}
    assert body["networkInterfaces"][0]["accessConfigs"]


def test_options_of_a_target_are_in_the_body():
    config = config_of(
        {
            "zone": "europe-west4-a", "external_ip": False, "subnetwork": "s", "network": "n",
            "service_account": "w@x", "manager_service_account": "m@x", "disk": "50GiB",
            "network_tags": ["dask"], "preemptible": 0.5,
        },
        7200,
    )  # fmt: skip
    attempt = Attempt("europe-west4-a", "n1-standard-4+t4x1", spot=True)
    body = instance_body(request(MANAGING), config, attempt)
    assert body["serviceAccounts"][0]["email"] == "m@x"
    assert body["networkInterfaces"] == [
        {"network": "global/networks/n", "subnetwork": "regions/europe-west4/subnetworks/s"}
    ]
    assert body["disks"][0]["initializeParams"]["diskSizeGb"] == "54"
    assert body["guestAccelerators"][0]["acceleratorCount"] == 1
    assert body["scheduling"] == {
        "automaticRestart": False,
        "provisioningModel": "SPOT",
        "onHostMaintenance": "TERMINATE",
        "maxRunDuration": {"seconds": "7200"},
        "instanceTerminationAction": "DELETE",
    }
    assert body["tags"]["items"][-1] == "dask"
    assert config.spot_share == 0.5


def test_instances_of_others_have_no_marks_and_odd_metadata_is_no_error():
    odd = {
        "name": "x",
        "status": "RUNNING",
        "metadata": {"items": [{"key": "scalable-marks", "value": "["}]},
    }
    machine = machine_of(odd)
    assert (machine.marks, machine.units, machine.state) == ({}, (), MachineState.RUNNING)


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "x", FailureKind.EXHAUSTED),
        ("QUOTA_EXCEEDED", "Quota 'N2_CPUS' exceeded.  Limit: 24.0 in region us-east1.", FailureKind.QUOTA_OF_REGION),
        ("quotaExceeded", "Quota 'INSTANCES' exceeded. Limit: 8.0 in zone a.", FailureKind.QUOTA),
        ("IP_SPACE_EXHAUSTED", "IP space of 'x' is exhausted.", FailureKind.ADDRESSES),
        ("invalid", "Machine type with name 'y' does not exist in zone 'z'.", FailureKind.NOT_OFFERED),
        ("invalid", "Invalid value for field 'resource.name'", FailureKind.FATAL),
    ],
)  # fmt: skip
def test_refusals_are_told_apart(code, message, kind):
    assert failure_of(code, message).kind is kind


def test_a_quota_of_the_region_rules_out_its_other_zones_and_no_other_type():
    tried = Tried()
    first = Attempt("z-a", "n2-standard-2")
    tried.note(first, LaunchFailure(FailureKind.QUOTA_OF_REGION, "", "N2_CPUS (limit 24)"))
    assert tried.is_pointless(Attempt("z-b", "n2-standard-2"))
    assert not tried.is_pointless(Attempt("z-b", "e2-standard-2"))
    assert tried.told() == "the quota N2_CPUS (limit 24) of the project is used up (n2-standard-2)"


def test_errors_have_one_line_and_say_whether_to_try_again():
    throttled = {
        "error": {"code": 403, "message": "a\nb", "errors": [{"reason": "rateLimitExceeded"}]}
    }
    error = refusal(403, json.dumps(throttled), "7")
    assert (error.message, error.transient, error.after_s, error.hint) == ("a b", True, 7.0, None)
    assert not refusal(403, "<html>no</html>").transient
    assert "\n" not in str(no_credentials(ValueError("x\n y. More.")))


# Rules --------------------------------------------------------------------------------------------


def rule(**fields):
    allowed = [{"IPProtocol": "tcp", "ports": ["1-65535"]}]
    return {"direction": "INGRESS", "allowed": allowed, "sourceRanges": ["0.0.0.0/0"]} | fields


@pytest.mark.parametrize(("fields", "met"), [
    ({}, True),
    ({"disabled": True}, False),
    ({"direction": "EGRESS"}, False),
    ({"allowed": [{"IPProtocol": "all"}]}, True),
    ({"allowed": [{"IPProtocol": "udp"}]}, False),
    ({"allowed": [{"IPProtocol": "tcp", "ports": ["8788"]}]}, True),
    ({"allowed": [{"IPProtocol": "tcp", "ports": ["22", "8789-9000"]}]}, False),
    ({"sourceRanges": ["203.0.113.0/25"]}, False),
    ({"sourceRanges": ["::/0"]}, False),
    ({"targetTags": ["others"]}, False),
    ({"targetTags": ["ours"]}, True),
    ({"targetServiceAccounts": ["x@y"]}, False),
])  # fmt: skip
def test_a_rule_is_found_that_lets_clients_in(fields, met):
    config = dataclasses.replace(CONFIG, clients_from=("203.0.113.0/24",))
    need = network.needs("c-1", config)[1]
    assert need.target == names.network_tag("c-1", SCHEDULER)
    assert network.is_met(need, [rule(**fields)], ["ours"]) == met


def test_machines_of_a_subnetwork_reach_each_other_by_its_range():
    need = network.needs("c-1", CONFIG, "10.128.0.0/20")[0]
    assert network.is_met(need, [rule(sourceRanges=["10.128.0.0/9"])], ())
    assert not network.is_met(
        network.needs("c-1", CONFIG)[0], [rule(sourceRanges=["10.0.0.0/8"])], ()
    )
    made = network.rule_body(need, "n", {CLUSTER: "c-1"})
    assert made["sourceTags"] == made["targetTags"] == [names.network_tag("c-1")]
    assert network.marks_of(made) == {CLUSTER: "c-1"}
    assert network.is_met(need, [made], ())
    assert network.marks_of({"description": "by hand"}) == {}


# Files --------------------------------------------------------------------------------------------


def test_files_that_are_too_large_for_one_secret_have_several_parts():
    large = "".join(f"{n * 7919 % 10007:x}" for n in range(60_000))
    parts = secrets.pack({"a": large})
    assert len(parts) == secrets.number_of_parts(parts[0]) > 1
    assert all(len(part) < 65_536 for part in parts)
    assert secrets.unpack([secrets.from_text(secrets.to_text(p)) for p in parts]) == {"a": large}
    with pytest.raises(ValueError, match="is missing"):
        secrets.unpack(parts[:-1])
    with pytest.raises(ValueError, match="different versions"):
        secrets.unpack([parts[0], secrets.pack({"a": large + "x"})[1]])
    with pytest.raises(ValueError, match="no files of scalable"):
        secrets.unpack([b"something"])


# Sizes --------------------------------------------------------------------------------------------


def test_workers_share_a_machine_that_is_named_as_far_as_it_holds_them():
    config = dataclasses.replace(CONFIG, instance_types=("e2-standard-4",))
    part = ComponentSpec("a", cpus=1, memory="2G", workers=WorkerRange(0, 10))
    assert units_on(config, part) == 4
    assert units_on(config, dataclasses.replace(part, workers=WorkerRange(0, 2))) == 2
    assert units_on(config, dataclasses.replace(part, memory="16GiB")) == 1
    assert units_on(dataclasses.replace(config, instance_types=("z9-new-8",)), part) == 1


def test_the_cheapest_machine_comes_first_and_others_are_of_other_families():
    found = candidates(CONFIG, 2, 4 * 10**9)
    assert found[0].startswith("e2-")
    families = [name.partition("-")[0] for name in found]
    assert len(set(families)) == len(families) > 1
    assert candidates(CONFIG, 10_000, 0) == []
    assert "t4" in candidates(CONFIG, 2, 4 * 10**9, 1)[0]


def test_a_target_that_can_never_run_says_so_before_it_is_asked_for():
    small = {"region": "us-central1", "instance_type": "e2-standard-2"}
    spec = DeploymentSpec("p", "t", "gcp", {"a": ComponentSpec("a", cpus=3)}, options=small)
    assert "e2-standard-2 (2 cpus" in findings(spec)[0].message
    huge = {"a": ComponentSpec("a", cpus=900)}
    spec = DeploymentSpec("p", "t", "gcp", huge, options={"region": "us-central1"})
    assert "no known machine type" in findings(spec)[0].message
    wrong = {"region": "us-east1", "zone": "us-central1-a"}
    spec = DeploymentSpec("p", "t", "gcp", {}, options=wrong)
    assert "is not in region" in findings(spec)[0].message


def test_quotas_are_those_of_the_series():
    assert metrics_of(Shape("n2-standard-4", 4, 2**34), public=False)["N2_CPUS"] == 4
    found = metrics_of(Shape("g2-standard-4", 4, 2**34, 1, "l4"), public=True)
    assert (found["CPUS"], found["NVIDIA_L4_GPUS"], found["IN_USE_ADDRESSES"]) == (4, 1, 1)
    assert left_of([{"metric": "CPUS", "limit": 8, "usage": 5}], "CPUS") == 3
    assert left_of([], "CPUS") is None
