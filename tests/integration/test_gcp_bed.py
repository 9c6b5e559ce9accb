"""The Google Cloud test bed, asked by Google's own clients."""

import uuid

import pytest

pytest.importorskip("google.cloud.compute")

from google.api_core import exceptions
from google.cloud import compute_v1
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

    def client(self, kind):
        credentials = service_account.Credentials.from_service_account_file(
            self.key, scopes=[SCOPE]
        )
        transport = kind.get_transport_class("rest")
        return kind(transport=transport(credentials=credentials, **self.options))

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
    script = "#!/bin/bash\necho ready on $(hostname)\ndocker run --name c --network host image sleep 600\n"
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
