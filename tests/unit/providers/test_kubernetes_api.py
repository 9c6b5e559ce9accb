"""Requests, the watch and the launcher, against answers that a server gave."""

import asyncio
import json
import os

import pytest

from scalable.errors import ManifestError, ProviderError
from scalable.manager.launcher import LimitReachedError, UnitState
from scalable.manifest import Manifest
from scalable.providers.kubernetes.api import (
    ATTEMPTS,
    KubernetesApi,
    KubernetesError,
    PodWatch,
    Resource,
    refusal,
)
from scalable.providers.kubernetes.launcher import PodLauncher
from scalable.providers.kubernetes.permissions import role
from scalable.providers.registry import option_models
from scalable.worker.config import SCRATCH, WorkerConfig, read_file

PODS = Resource("pods", "n")


@pytest.fixture(autouse=True)
def scratch(monkeypatch, tmp_path):
    """Workers whose configuration is read here leave no directory behind."""
    monkeypatch.setenv(SCRATCH, str(tmp_path))


def status(code, message="no", reason="", **details):
    return refusal(
        code, json.dumps({"message": message, "reason": reason, "details": details or None})
    )


class Answers(KubernetesApi):
    """An API whose server gives the answers of a list; errors are raised."""

    def __init__(self, *answers):
        super().__init__(pause=lambda _attempt: 0.0)
        self.answers = list(answers)
        self.asked = []

    async def _once(self, method, path, query, body, content):
        self.asked.append((method, path))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_attempts_are_bounded():
    api = Answers(*[status(500, "etcd is away")] * 20)
    with pytest.raises(KubernetesError, match="etcd is away") as caught:
        asyncio.run(api.request("GET", PODS))
    assert caught.value.transient
    assert len(api.asked) == ATTEMPTS


def test_a_refusal_is_not_repeated():
    api = Answers(status(422, "spec is invalid", "Invalid"))
    with pytest.raises(KubernetesError, match="spec is invalid") as caught:
        asyncio.run(api.request("POST", PODS, body=b"{}"))
    assert not caught.value.transient


@pytest.mark.parametrize(("method", "parts", "words"), [
    ("POST", (), "may not create pods in namespace 'n'"),
    ("GET", (), "may not list pods"),
    ("GET", ("x", "log"), "may not get pods/log"),
    ("DELETE", ("x",), "may not delete pods"),
])  # fmt: skip
def test_a_missing_permission_names_verb_and_resource_and_shows_the_role(method, parts, words):
    api = Answers(status(403, "forbidden", "Forbidden"))
    with pytest.raises(ProviderError, match=words) as caught:
        asyncio.run(api.request(method, PODS, *parts))
    assert caught.value.hint.endswith(role("n"))


def test_a_used_up_quota_is_a_limit_for_now():
    api = Answers(status(403, 'pods "x" is forbidden: exceeded quota: q', "Forbidden"))
    with pytest.raises(LimitReachedError, match="exceeded quota: q"):
        asyncio.run(api.request("POST", PODS))


def test_an_object_that_a_lost_answer_left_is_taken():
    api = Answers(status(409, "already exists", "AlreadyExists"), {"metadata": {"uid": "1"}})
    body = b'{"metadata": {"name": "x"}}'
    assert asyncio.run(api.create_root(PODS, body)) == {"metadata": {"uid": "1"}}
    assert api.asked[-1] == ("GET", "/api/v1/namespaces/n/pods/x")


# Watch --------------------------------------------------------------------------------------------


def pod(name, version, phase="Running", unit=None):
    metadata = {"name": name, "resourceVersion": version, "labels": {"l": "1"}}
    if unit:
        metadata["annotations"] = {"scalable/unit": unit, "scalable/tag": "a"}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase}}


def listing(version, *pods):
    return {"metadata": {"resourceVersion": version}, "items": list(pods)}


async def test_a_new_list_tells_what_went_and_came_meanwhile():
    told = []
    api = Answers(
        listing("5", pod("a", "1"), pod("b", "2")), listing("9", pod("b", "2"), pod("c", "7"))
    )
    watch = PodWatch(api, "n", "l", lambda p, gone: told.append((p["metadata"]["name"], gone)))
    await watch._list()
    watch._take({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "6"}}})
    assert watch._version == "6"
    with pytest.raises(KubernetesError) as caught:
        watch._take({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
    assert caught.value.status == 410
    await watch._list()
    assert sorted(watch.pods) == ["b", "c"]
    assert told == [("a", False), ("b", False), ("a", True), ("c", False)]


# Launcher -----------------------------------------------------------------------------------------


def launcher_of(api):
    def render(tag, unit):
        return {"metadata": {"name": f"scalable-{unit}"}}

    return PodLauncher(api, "n", {"l": "1"}, render)


async def test_a_quota_in_the_middle_of_a_request_leaves_none_of_it():
    full = status(403, "exceeded quota: q", "Forbidden")
    api = Answers({"metadata": {}}, full, status(404))
    launcher = launcher_of(api)
    with pytest.raises(LimitReachedError):
        await launcher.launch({"u0": {"pool": "a"}, "u1": {"pool": "a"}})
    assert launcher.observe() == {}
    assert ("DELETE", "/api/v1/namespaces/n/pods/scalable-u0") in api.asked


async def test_a_unit_whose_pod_somebody_deleted_ended_from_outside():
    ends = []
    launcher = launcher_of(Answers({"metadata": {}}))
    launcher.on_change = lambda: ends.append(1)
    await launcher.launch({"u0": {"pool": "a"}})
    assert launcher.observe()["u0"].state is UnitState.PENDING
    launcher.noted(pod("scalable-u0", "1"), gone=False)
    launcher.noted(pod("scalable-u0", "2"), gone=True)
    seen = launcher.observe()["u0"]
    assert (seen.state, seen.from_outside) == (UnitState.ENDED, True)
    assert ends == [1]


async def test_a_pod_that_goes_while_it_is_deleted_is_gone():
    api = Answers({"metadata": {}}, {"metadata": {}}, {}, {})
    launcher = launcher_of(api)
    await launcher.launch({"u0": {"pool": "a"}, "u1": {"pool": "a"}})
    once = api._once

    async def deleted(method, path, *rest):
        launcher.noted(pod("scalable-u0", "2"), gone=True)
        launcher.noted(pod("scalable-u1", "3"), gone=True)
        return await once(method, path, *rest)

    api._once = deleted
    await launcher.stop(["u0", "u1", "unknown"])
    assert launcher.observe() == {}
    await launcher.stop(["u0"])


# Configuration of a worker ------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="files of another user need root")
@pytest.mark.parametrize(
    ("owner", "mode", "allowed"),
    [(0, 0o600, True), (0, 0o440, False), (65534, 0o440, True), (65534, 0o444, False)],
)
def test_a_mounted_secret_may_be_read_by_a_group_of_its_program(tmp_path, owner, mode, allowed):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"scheduler": "tls://1"}))
    file.chmod(mode)
    os.chown(file, owner, 0)
    if not allowed:
        with pytest.raises(SystemExit, match="other users can read it"):
            read_file(file, "w")
        return
    assert isinstance(read_file(file, "w"), WorkerConfig)


def test_a_worker_listens_where_its_surroundings_say(tmp_path, monkeypatch):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"scheduler": "tls://1", "host": ""}))
    file.chmod(0o600)
    monkeypatch.setenv("SCALABLE_HOST", "10.0.0.7")
    assert read_file(file, "w").host == "10.0.0.7"


def test_the_pull_policy_of_images_is_said_to_belong_into_the_pod_template():
    target = {"provider": "kubernetes", "imagePullPolicy": "Always"}
    whole = {"version": 1, "project": {"name": "p"}, "components": {"a": {}}}
    with pytest.raises(ManifestError) as caught:
        Manifest.from_mapping({**whole, "targets": {"k": target}}, option_models())
    (fault,) = caught.value.diagnostics
    assert "pod_template" in fault.hint
