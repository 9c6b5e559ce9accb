"""The storage of a session is the same in the workflow and in its calls."""

import json
import os
import uuid

import pytest

from scalable import ScalableSession, Storage, current_storage
from scalable.errors import ClusterError, ManifestError

MANIFEST = """\
version: 1
project: {name: tests, default_storage: %s}
targets:
  threads: {provider: local}
  local: {provider: local, processes: true}
components:
  a: {cpus: 1, workers: 1}
"""


@pytest.fixture(params=["threads", "local"])
def target(request):
    return request.param


def write(name, given=None):
    """Write a file in the storage of the call, and return the call's process."""
    storage = current_storage()
    assert given is None or given == storage
    with storage.open(f"maps/{name}", "w") as file:
        file.write(name)
    return os.getpid()


def test_calls_open_what_the_session_opens(place, target):
    here = place(text=MANIFEST % "file:results")
    session = ScalableSession.from_yaml(target=target)
    with session as client:
        assert session.storage == Storage(f"file://{here}/results")
        one = client.submit(write, "one", session.storage, tag="a")
        assert (one.result() != os.getpid()) == (target == "local")
        assert list(client.pool("a").map(write, ["two"]))
        assert session.storage.ls("maps") == ["maps/one", "maps/two"]
        with session.storage.open("maps/two", "r") as file:
            assert file.read() == "two"
    assert (here / "results" / "maps" / "one").read_text() == "one"


def test_threads_share_a_storage_in_memory(place):
    name = uuid.uuid4().hex
    place(text=MANIFEST % f"memory://{name}")
    session = ScalableSession.from_yaml(target="threads")
    with session as client:
        client.submit(write, "one", tag="a").result()
        assert session.storage.ls("maps") == ["maps/one"]
        session.record_artifact(session.storage.url("maps/one"), kind="map")
        session.record_artifact("https://ann:hidden@nowhere.invalid/a.nc?token=hidden")
    text = (session.run_path / "artifacts.jsonl").read_text()
    one, two = [json.loads(line) for line in text.splitlines()]
    assert (one["name"], one["uri"], one["bytes"]) == ("one", f"memory://{name}/maps/one", 3)
    assert (two["name"], two["bytes"]) == ("a.nc", None)
    assert two["uri"] == "https://nowhere.invalid/a.nc?token=..."
    assert "hidden" not in text


def test_without_a_storage_session_and_calls_say_what_to_write(place):
    session = ScalableSession.local({"a": 1})
    with pytest.raises(ManifestError, match="add default_storage under project"):
        session.storage  # noqa: B018
    with session as client:
        failed = client.submit(write, "one", tag="a").exception()
    assert isinstance(failed, ManifestError)


def test_outside_a_call_there_is_no_current_storage():
    with pytest.raises(ClusterError, match=r"use session\.storage"):
        current_storage()
