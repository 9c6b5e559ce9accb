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
