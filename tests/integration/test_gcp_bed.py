"""The Google Cloud test bed, asked by Google's own clients."""

import json
import uuid

import pytest

pytest.importorskip("google.cloud.compute")
pytest.importorskip("google.cloud.secretmanager")

from google.api_core import exceptions
from google.auth.transport import requests as google_requests
from google.cloud import compute_v1, secretmanager
from google.oauth2 import service_account

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
    yield gcp_bed
    gcp_bed.clear_faults()
    gcp_bed.clear()


@pytest.fixture
def cloud(bed):
    return Cloud(bed)


def test_a_startup_script_runs_as_processes_that_end_with_the_instance(bed, cloud, eventually):
    loop = "trap exit TERM; while :; do sleep 0.1; done"
    script = f"#!/bin/bash\necho ready on $(hostname)\ndocker run image sh -c '{loop}'\n"
    assert cloud.done(cloud.insert(name="one", script=script)).status.name == "DONE"
    eventually(lambda: "startup-script: ready on one" in bed.console("one"))
    found = eventually(lambda: (m := bed.machines()["one"]) and len(m["pids"]) > 3 and m)
    assert (found["status"], found["type"]) == ("RUNNING", "e2-small")
    shown = cloud.instances.get(instance="one", **PLACE)
    assert shown.network_interfaces[0].network_i_p == found["address"]
    assert cloud.delete("one").status.name == "DONE"
    assert bed.machines() == {}
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
    alice.set_iam_policy(request={"resource": secret.name, "policy": policy})
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
echo key=$(ask 'attributes/key?wait_for_change=true')
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
    assert "key=second" in bed.console("m")
    assert "aGlkZGVu" in bed.console("m")
