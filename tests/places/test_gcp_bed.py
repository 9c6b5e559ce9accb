"""The Google Cloud test bed, asked by Google's own clients."""

import json
import uuid

import psutil
import pytest

pytest.importorskip("google.cloud.compute")
pytest.importorskip("google.cloud.secretmanager")

from google.api_core import exceptions
from google.auth import exceptions as auth_exceptions
from google.auth.transport import requests as google_requests
from google.cloud import compute_v1, secretmanager
from google.oauth2 import service_account

from gcp_bed import GcpBed

PROJECT, ZONE = "bed-project", "us-central1-a"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
PLACE = {"project": PROJECT, "zone": ZONE}


class Cloud:
    """Clients of one user."""

    def __init__(self, bed, user="alice"):
        self.key = bed.key(user)
        self.options = {"host": bed.endpoint.removeprefix("http://"), "url_scheme": "http"}
        self.instances = self.client(compute_v1.InstancesClient)
        self.operations = self.client(compute_v1.ZoneOperationsClient)

    def credentials(self):
        return service_account.Credentials.from_service_account_file(self.key, scopes=[SCOPE])

    def client(self, kind):
        transport = kind.get_transport_class("rest")
        return kind(transport=transport(credentials=self.credentials(), **self.options))

    def done(self, operation):
        return self.operations.wait(operation=operation.name, **PLACE)

    def insert(self, request_id=None, **fields):
        request = {**PLACE, "instance_resource": instance(**fields)}
        if request_id:
            request["request_id"] = request_id
        return self.instances.insert(request=request)

    def list(self, text):
        return [i.name for i in self.instances.list(request={**PLACE, "filter": text})]

    def delete(self, name):
        return self.done(self.instances.delete(instance=name, **PLACE))


def instance(name, script="", labels=None, machine_type="e2-small", metadata=(), **fields):
    image = "projects/cos-cloud/global/images/family/cos-stable"
    disk = {"boot": True, "auto_delete": True, "initialize_params": {"source_image": image}}
    items = [{"key": "startup-script", "value": script}] if script else []
    return compute_v1.Instance(
        {
            "name": name,
            "machine_type": f"zones/{ZONE}/machineTypes/{machine_type}",
            "labels": labels or {},
            "disks": [disk],
            "network_interfaces": [{"network": "global/networks/default"}],
            "service_accounts": [{"email": "default", "scopes": [SCOPE]}],
            "metadata": {"items": [*items, *metadata]},
            **fields,
        }
    )


@pytest.fixture
def bed(gcp_bed):
    gcp_bed.clear()
    yield gcp_bed
    gcp_bed.clear_faults()
    gcp_bed.clear()


@pytest.fixture
def cloud(bed):
    return Cloud(bed)


def test_a_startup_script_runs_as_processes_that_end_with_the_instance(bed, cloud, eventually):
    loop = "trap exit TERM; echo up; while :; do sleep 0.1; done"
    script = f"#!/bin/bash\necho ready on $(hostname)\ndocker run image sh -c '{loop}'\n"
    assert cloud.done(cloud.insert(name="one", script=script)).status.name == "DONE"
    eventually(lambda: "startup-script: ready on one" in bed.console("one"))
    eventually(lambda: "startup-script: up" in bed.console("one"))
    found = bed.machines()["one"]
    assert all(psutil.pid_exists(pid) for pid in found["pids"])
    assert (found["status"], found["type"]) == ("RUNNING", "e2-small")
    shown = cloud.instances.get(instance="one", **PLACE)
    assert shown.network_interfaces[0].network_i_p == found["address"]
    assert cloud.delete("one").status.name == "DONE"
    assert bed.machines() == {}
    assert not any(psutil.pid_exists(pid) for pid in found["pids"])
    with pytest.raises(exceptions.NotFound):
        cloud.instances.get(instance="one", **PLACE)


def test_instances_are_listed_by_their_labels_and_page_by_page(bed, cloud):
    for number in range(3):
        cloud.insert(name=f"m{number}", labels={"cluster": "a" if number else "b", "own-er": "x"})
    assert cloud.list("labels.cluster=a") == ["m1", "m2"]
    assert cloud.list('(labels.cluster="b") AND (labels.own-er=x)') == ["m0"]
    assert cloud.list("labels.cluster=b OR name=m2") == ["m0", "m2"]
    assert cloud.list("labels.other:*") == []
    pages = cloud.instances.aggregated_list(
        request={"project": PROJECT, "filter": "labels.own-er=x", "max_results": 2}
    )
    assert [i.name for _, scope in pages for i in scope.instances] == ["m0", "m1", "m2"]
    with pytest.raises(exceptions.BadRequest, match="Invalid list filter expression"):
        cloud.list("labels.cluster=")


def test_a_request_id_makes_one_instance_and_one_operation(bed, cloud):
    number = str(uuid.uuid4())
    first = cloud.insert(number, name="once")
    assert cloud.insert(number, name="once").name == first.name
    with pytest.raises(exceptions.Conflict):
        cloud.insert(str(uuid.uuid4()), name="once")
    with pytest.raises(exceptions.BadRequest, match="valid UUID"):
        cloud.insert("again", name="twice")
    assert list(bed.machines()) == ["once"]


def test_bodies_that_the_discovery_document_or_the_service_refuses_make_nothing(bed, cloud):
    session = google_requests.AuthorizedSession(cloud.credentials())
    url = f"{bed.endpoint}/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"
    good = json.loads(compute_v1.Instance.to_json(instance("x"), use_integers_for_enums=False))
    good = {key: value for key, value in good.items() if value}
    labels = {f"l{n}": "v" for n in range(65)}
    for change, words in (
        ({"lables": {}}, "Unknown name"),
        ({"canIpForward": "yes"}, "TYPE_BOOL"),
        ({"name": "Upper"}, "regex"),
        ({"name": "a" * 64}, "regex"),
        ({"labels": {"Key": "v"}}, "Label key"),
        ({"labels": {"key": "Value"}}, "Label value"),
        ({"labels": labels}, "cannot exceed 64"),
        ({"machineType": "e2-small"}, "malformed"),
        ({"machineType": f"zones/{ZONE}/machineTypes/e9-huge"}, "does not exist in zone"),
        ({"disks": []}, "No disks"),
        ({"scheduling": {"provisioningModel": "CHEAP"}}, "enum"),
        ({"metadata": {"items": [{"key": "a", "value": "x" * 300_000}]}}, "too long"),
    ):
        answer = session.post(url, json=good | change)
        assert answer.status_code in {400, 413}, (change, answer.text)
        assert words in answer.json()["error"]["message"]
    assert session.post(url + "?dryRun=true", json=good).status_code == 400
    assert bed.machines() == {}
    assert session.post(url, json=good).status_code == 200


def test_only_identities_that_a_policy_names_read_a_secret(bed, cloud):
    def manager(user):
        credentials = Cloud(bed, user).credentials()
        kind = secretmanager.SecretManagerServiceClient
        transport = kind.get_transport_class("rest")
        return kind(transport=transport(credentials=credentials, **cloud.options))

    alice, viewer = manager("alice"), manager("viewer")
    parent = f"projects/{PROJECT}"
    body = {"replication": {"automatic": {}}, "labels": {"cluster": "a"}}
    secret = alice.create_secret(parent=parent, secret_id="s-1", secret=body)
    alice.add_secret_version(parent=secret.name, payload={"data": b"hidden"})
    version = f"{parent}/secrets/s-1/versions/latest"
    assert alice.access_secret_version(name=version).payload.data == b"hidden"
    with pytest.raises(exceptions.Forbidden, match=r"secretmanager\.versions\.access"):
        viewer.access_secret_version(name=version)
    policy = alice.get_iam_policy(request={"resource": secret.name})
    member = f"serviceAccount:{bed.email('viewer')}"
    policy.bindings.add(role="roles/secretmanager.secretAccessor", members=[member])
    bed.set(policy=3600)
    old = alice.set_iam_policy(request={"resource": secret.name, "policy": policy})
    with pytest.raises(exceptions.Forbidden):
        viewer.access_secret_version(name=version)
    bed.set(policy=0)
    alice.set_iam_policy(request={"resource": secret.name, "policy": old})
    assert viewer.access_secret_version(name=version).payload.data == b"hidden"
    found = alice.list_secrets(request={"parent": parent, "filter": "labels.cluster=a"})
    assert [s.name for s in found] == [secret.name]
    alice.delete_secret(name=secret.name)
    with pytest.raises(exceptions.NotFound):
        alice.access_secret_version(name=version)


def test_a_machine_reads_its_secret_and_metadata_as_its_service_account(bed, cloud, eventually):
    api = f"{bed.endpoint}/v1/projects/{PROJECT}/secrets"
    session = google_requests.AuthorizedSession(cloud.credentials())
    session.post(f"{api}?secretId=s", json={"replication": {"automatic": {}}})
    session.post(f"{api}/s:addVersion", json={"payload": {"data": "aGlkZGVu"}})
    metadata = "http://metadata.google.internal/computeMetadata/v1/instance"
    script = f"""#!/bin/bash
curl -s -o /dev/null -w '%{{http_code}}\\n' {metadata}/name
ask() {{ curl -s -H 'Metadata-Flavor: Google' "{metadata}/$1"; }}
echo key=$(ask attributes/key)
access() {{
  token=$(ask service-accounts/default/token | sed 's/.*"access_token": "\\([^"]*\\)".*/\\1/')
  curl -s -H "Authorization: Bearer $token" \\
    https://secretmanager.googleapis.com/v1/projects/{PROJECT}/secrets/s/versions/latest:access
}}
access | grep -o 'denied for resource'
until [ "$(ask 'attributes/key?wait_for_change=true&timeout_sec=5')" = second ]; do :; done
access | grep -o aGlkZGVu
poweroff
"""
    cloud.done(cloud.insert(name="m", script=script, metadata=[{"key": "key", "value": "first"}]))
    eventually(lambda: "denied for resource" in bed.console("m"))
    assert "startup-script: 403\n" in bed.console("m")
    assert "key=first" in bed.console("m")
    account = cloud.instances.get(instance="m", **PLACE).service_accounts[0].email
    binding = {
        "role": "roles/secretmanager.secretAccessor",
        "members": [f"serviceAccount:{account}"],
    }
    session.post(f"{api}/s:setIamPolicy", json={"policy": {"bindings": [binding]}})
    shown = cloud.instances.get(instance="m", **PLACE)
    shown.metadata.items[1].value = "second"
    cloud.done(
        cloud.instances.set_metadata(instance="m", metadata_resource=shown.metadata, **PLACE)
    )
    eventually(lambda: bed.machines()["m"]["status"] == "TERMINATED")
    assert "aGlkZGVu" in bed.console("m")


def test_a_preempted_machine_has_a_notice_and_then_ends(bed, cloud, eventually):
    script = """#!/bin/bash
address=http://metadata.google.internal/computeMetadata/v1/instance/preempted
ask() { curl -s -H 'Metadata-Flavor: Google' "$address?wait_for_change=true&timeout_sec=5"; }
(trap '' TERM; until [ "$(ask)" = TRUE ]; do :; done; echo preempted) &
docker run -d --name c image sh -c 'trap "echo told; exit" TERM; while :; do sleep 0.1; done'
docker logs -f c
"""
    for name, action in (("keep", "STOP"), ("drop", "DELETE")):
        scheduling = {"provisioning_model": "SPOT", "instance_termination_action": action}
        end = [{"key": "shutdown-script", "value": "#!/bin/sh\necho farewell\n"}]
        operation = cloud.insert(name=name, script=script, scheduling=scheduling, metadata=end)
        assert not cloud.done(operation).error
        eventually(lambda name=name: len(bed.machines()[name]["pids"]) > 6)
    shown = cloud.instances.get(instance="keep", **PLACE)
    assert shown.scheduling.preemptible
    bed.set(notice=5.0)
    bed.preempt("keep")
    bed.preempt("drop")
    eventually(lambda: bed.machines().get("keep", {}).get("status") == "TERMINATED")
    eventually(lambda: list(bed.machines()) == ["keep"])
    for word in (
        "startup-script: preempted",
        "shutdown-script: farewell",
        "Reached target Power-Off",
    ):
        assert word in bed.console("keep"), word
    text = 'operationType="compute.instances.preempted"'
    found = cloud.operations.list(request={**PLACE, "filter": text})
    # The bed has the machines of other tests too.
    assert {o.target_link.rpartition("/")[2] for o in found} >= {"keep", "drop"}


def test_capacity_and_quota_end_an_operation_with_an_error(bed, cloud):
    bed.exhaust(ZONE, "e2-small", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")
    (error,) = cloud.done(cloud.insert(name="m1")).error.errors
    assert error.code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert f"zones/{ZONE}' does not have enough resources" in error.message
    assert not cloud.done(cloud.insert(name="m2", machine_type="e2-medium")).error
    bed.exhaust(ZONE, "e2-small", "")
    bed.quota("CPUS", 2)
    (error,) = cloud.done(cloud.insert(name="m3")).error.errors
    assert error.code == "QUOTA_EXCEEDED"
    assert error.message == "Quota 'CPUS' exceeded.  Limit: 2.0 in region us-central1."
    assert list(bed.machines()) == ["m2"]
    bed.without_type(ZONE, "e2-small")
    with pytest.raises(exceptions.BadRequest, match="does not exist in zone"):
        cloud.insert(name="m4")


def test_a_lost_answer_leaves_one_instance_that_the_request_id_finds_again(bed, cloud):
    bed.lose_answers("compute.instances.insert")
    number = str(uuid.uuid4())
    with pytest.raises(Exception, match=r"[Cc]onnection"):
        cloud.insert(number, name="m")
    operation = cloud.insert(number, name="m")
    assert not cloud.done(operation).error
    assert list(bed.machines()) == ["m"]


def test_calls_are_throttled_and_counted_on_order(bed, cloud):
    bed.reset_calls()
    bed.throttle("compute.instances.list", every=2, status=403)
    cloud.list("")
    with pytest.raises(exceptions.Forbidden, match="Rate Limit Exceeded"):
        cloud.list("")
    assert bed.calls["compute.instances.list"] == 2
    bed.deny("compute.instances.create")
    with pytest.raises(exceptions.Forbidden, match=r"Required 'compute\.instances\.create'"):
        cloud.insert(name="m")


def test_tokens_end_and_are_renewed_and_wrong_keys_are_refused(bed, cloud):
    cloud.list("")
    bed.reset_calls()
    bed.expire_tokens()
    cloud.list("")
    assert bed.calls == {"compute.instances.list": 2, "oauth2.token": 1}
    with pytest.raises(auth_exceptions.RefreshError, match="invalid_grant"):
        Cloud(bed, "stranger").list("")
    with pytest.raises(exceptions.Forbidden):
        Cloud(bed, "nobody").list("")
    session = google_requests.AuthorizedSession(Cloud(bed, "bob").credentials())
    answer = session.get(f"{bed.endpoint}/oauth2/v3/userinfo").json()
    assert answer["email"] == bed.email("bob")


def test_a_machine_that_never_boots_runs_and_does_nothing(bed, cloud):
    bed.never_boot("dead")
    assert not cloud.done(cloud.insert(name="dead", script="#!/bin/sh\necho alive\n")).error
    found = bed.machines()["dead"]
    assert (found["status"], found["pids"], bed.console("dead")) == ("RUNNING", [], "")


def test_nothing_is_left_of_a_test_bed_that_is_told_to_end(eventually):
    with GcpBed() as bed:
        cloud = Cloud(bed)
        script = "#!/bin/bash\necho up\ndocker run image sleep 600\n"
        cloud.done(cloud.insert(name="m", script=script))
        pids = eventually(lambda: len(p := bed.machines()["m"]["pids"]) > 4 and p)
        bed.process.terminate()
        assert bed.process.wait(20) == 0
        assert not any(psutil.pid_exists(pid) for pid in pids)
        assert not bed.directory.exists()


def test_containers_have_the_memory_of_their_machine_and_tell_how_they_ended(
    bed, cloud, eventually
):
    script = """#!/bin/bash
docker run -d --name big --init --memory 300m image \\
  python -c "import time; kept = bytearray(400 * 2**20); time.sleep(600)"
docker run -d --name told --init image python -c "print('up', flush=True); import time; time.sleep(600)"
until docker logs told | grep up; do sleep 0.1; done
docker stop -t 5 told
echo told: $(docker wait told)
echo big: $(docker wait big) $(docker inspect -f '{{.State.OOMKilled}}' big)
docker run gone/image; echo missing: $?
"""
    bed.without_image("gone/*")
    cloud.insert(name="m", script=script)
    eventually(lambda: "missing: " in bed.console("m"))
    for line in ("told: 143", "big: 137 true", "missing: 125", "manifest unknown"):
        assert line in bed.console("m"), line


def test_a_maximum_duration_ends_an_instance(bed, cloud, eventually):
    bed.set(run_scale=0.001)
    for name, action in (("keep", "STOP"), ("drop", "DELETE")):
        scheduling = {
            "max_run_duration": {"seconds": 60},
            "instance_termination_action": action,
        }
        cloud.insert(name=name, scheduling=scheduling)
    eventually(lambda: [m["status"] for m in bed.machines().values()] == ["TERMINATED"])
    assert list(bed.machines()) == ["keep"]
    bed.set(run_scale=1.0)
    cloud.done(cloud.instances.start(instance="keep", **PLACE))
    assert bed.machines()["keep"]["status"] == "RUNNING"


def test_networks_rules_types_and_images_are_answered(bed, cloud):
    types = cloud.client(compute_v1.MachineTypesClient)
    assert types.get(machine_type="e2-highmem-4", **PLACE).memory_mb == 32768
    listed = [t.name for t in types.list(request={**PLACE, "filter": "guestCpus=8"})]
    assert "n2-standard-8" in listed
    assert "a2-highgpu-1g" not in listed
    images = cloud.client(compute_v1.ImagesClient)
    image = images.get_from_family(project="cos-cloud", family="cos-stable")
    assert image.name.startswith("cos-stable-")
    with pytest.raises(exceptions.NotFound):
        images.get_from_family(project="cos-cloud", family="cos-unknown")
    rules = cloud.client(compute_v1.FirewallsClient)
    body = {
        "name": "rule",
        "network": "global/networks/default",
        "allowed": [{"I_p_protocol": "tcp", "ports": ["8786"]}],
        "source_ranges": ["10.0.0.0/8"],
    }
    rules.insert(project=PROJECT, firewall_resource=body)
    assert rules.get(project=PROJECT, firewall="rule").direction == "INGRESS"
    rules.delete(project=PROJECT, firewall="rule")
    assert "rule" not in [r.name for r in rules.list(project=PROJECT)]
    regions = cloud.client(compute_v1.RegionsClient)
    cloud.done(cloud.insert(name="m", machine_type="n2-standard-4"))
    quotas = regions.get(project=PROJECT, region="us-central1").quotas
    assert {q.metric: q.usage for q in quotas if q.usage} == {"N2_CPUS": 4.0, "INSTANCES": 1.0}


def test_a_bulk_request_makes_instances_by_a_pattern(bed, cloud):
    regional = cloud.client(compute_v1.RegionInstancesClient)
    model = instance("x")
    bulk = {
        "count": 3,
        "name_pattern": "w-###",
        "instance_properties": {
            "machine_type": "e2-small",
            "disks": model.disks,
            "network_interfaces": model.network_interfaces,
            "labels": {"cluster": "a"},
        },
    }
    bed.exhaust(ZONE)
    operation = regional.bulk_insert(
        project=PROJECT, region="us-central1", bulk_insert_instance_resource_resource=bulk
    )
    regions = cloud.client(compute_v1.RegionOperationsClient)
    done = regions.wait(project=PROJECT, region="us-central1", operation=operation.name)
    assert not done.error
    assert {n: m["zone"] for n, m in bed.machines().items()} == dict.fromkeys(
        ("w-001", "w-002", "w-003"), "us-central1-b"
    )
