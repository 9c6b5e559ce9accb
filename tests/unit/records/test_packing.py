"""Files of clusters that come from elsewhere."""

import functools

import pytest

from scalable.clusters.remote import _taken
from scalable.errors import ClusterError
from scalable.records import ClusterDirectory
from scalable.records.packing import packed, unpack
from unit.made_records import made_record

ID = "12345678-1234-1234-1234-123456789abc"


record = functools.partial(made_record, id=ID)


def test_files_are_packed_and_unpacked():
    made = ClusterDirectory.create(record(), manifest_yaml="m", spec="{}")
    made.write_pem("a", "b", "c")
    made.write_request("k", "mine", "{}", "{}")
    files = packed(made, "k")
    made.remove()
    again = unpack(files, record())
    assert packed(again, "k") == files
    own = {f"managers/k/{name}" for name in ("manifest.yaml", "secrets.json")}
    assert set(files) >= {"record.json", "tls/key.pem", *own}


@pytest.mark.parametrize("name", [
    "managers/k/manager.json", "services.json", "scheduler.json", "../up", "/etc/x",
    "managers/../manifest.yaml", "a/b/c", "tls/other.pem",
])  # fmt: skip
def test_nothing_else_is_taken_from_elsewhere(name):
    with pytest.raises(ClusterError, match="is not a file of a cluster"):
        unpack({name: "x"}, record())
    assert not ClusterDirectory.parent().exists() or not list(ClusterDirectory.parent().iterdir())


@pytest.mark.parametrize("cluster_id", [".lock", "x" * 255, ID.upper(), "other"])
def test_a_record_of_another_id_is_refused(cluster_id):
    with pytest.raises((ClusterError, ValueError)):
        _taken(record(id=cluster_id), cluster_id, "kubernetes", {})
    with pytest.raises(ClusterError):
        _taken(record(id=cluster_id), ID, "kubernetes", {})


def test_what_decides_about_this_machine_is_not_taken():
    taken = _taken(
        record(working_dir="/x", sys_path=("/y",), services="process", creator={"pid": 1}),
        ID,
        "kubernetes",
        {"namespace": "n"},
    )
    assert (taken.provider, taken.services, taken.remote) == ("kubernetes", "kubernetes", True)
    assert (taken.working_dir, taken.sys_path, dict(taken.creator)) == (None, (), {})
