"""The objects of a cluster: valid for two versions of Kubernetes, and exactly what is described."""

import base64
import json
from dataclasses import replace

import pytest

from scalable.errors import ProviderError
from scalable.model import ComponentSpec, DeploymentSpec
from scalable.providers.kubernetes import objects as drafts
from scalable.providers.kubernetes import render
from scalable.providers.kubernetes.options import KubernetesOptions
from scalable.providers.kubernetes.render import (
    label_value,
    merge,
    object_name,
    parse_mount,
    volumes,
)

VERSIONS = ("1.31", "1.34")


def request(components=None, **options):
    parts = components or [ComponentSpec("demeter", cpus=2, memory="4G", gpus=1)]
    written = {"image": "site/model:1", **options}
    model = KubernetesOptions.model_validate_json(json.dumps(written))
    return DeploymentSpec(
        project_name="p",
        target_name="k",
        provider_name="kubernetes",
        components={part.name: part for part in parts},
        options=model.model_dump(mode="json"),
    )


def frame_of(spec, template=None):
    return render.Frame("0123456789", "k", spec.options, template or {}, "uid-1")


def pod_of(spec, tag="demeter", template=None):
    return render.worker_pod(frame_of(spec, template), spec.components[tag], f"{tag}-0123456789-0")


def our_container(pod):
    return next(c for c in pod["spec"]["containers"] if c["name"] == render.CONTAINER)


# Objects ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid(version):
    validate = pytest.importorskip("kubernetes_validate").validate
    spec = request(
        [
            ComponentSpec("a_b", memory="1G", mounts={"pvc://data/in": "/in"}),
            ComponentSpec("B.c", gpus=2, mounts={"emptydir://2G": "/scratch"}),
        ],
        service_account="runner",
        image_pull_secrets=["registry"],
        env={"A": "1"},
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        node_selector={"pool": "fast"},
        priority_class="high",
        mounts={"configmap://settings": "/settings", "secret://key/file": "/key"},
        resources={"requests": {"ephemeral-storage": "1Gi"}, "limits": {}},
    )
    objects = drafts.objects(spec, {"a_b": 2, "B.c": 1})
    assert [name.partition("-")[2].partition("-")[0] for name in objects] == [
        *("job", "secret", "service", "secret", "secret"),
        *("pod", "pod", "pod"),
    ]
    for body in objects.values():
        validate(json.loads(body), version, strict=True)


def test_a_worker_pod_asks_for_what_its_component_reserves():
    container = our_container(pod_of(request()))
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "4000000000", "nvidia.com/gpu": "1"},
        "limits": {"memory": "4000000000", "nvidia.com/gpu": "1"},
    }
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert env["OMP_NUM_THREADS"] == "2"
    assert container["image"] == "site/model:1"


def test_pods_are_never_restarted_and_get_no_token():
    pod = pod_of(request())
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["metadata"]["labels"]["scalable/tag"] == "demeter"
    assert pod["metadata"]["labels"]["scalable/unit"] == "demeter-0123456789-0"
    assert pod["metadata"]["labels"]["scalable/manager"] == "k"
    assert pod["metadata"]["labels"]["scalable/cluster"] == "0123456789"


def test_credentials_are_files_that_only_their_owner_reads():
    spec = request()
    secret = render.secret(frame_of(spec), "s", "worker", {"config.json": "text"})
    assert base64.b64decode(secret["data"]["config.json"]) == b"text"
    pod = pod_of(spec)
    (volume,) = pod["spec"]["volumes"]
    assert volume["secret"]["defaultMode"] == 0o400
    assert "PRIVATE KEY" not in json.dumps(pod)


def test_the_image_of_a_component_wins_over_the_targets():
    spec = request()
    spec.components["demeter"] = replace(spec.components["demeter"], image="docker://site/own:2")
    assert our_container(pod_of(spec))["image"] == "site/own:2"
    assert our_container(render.root_job(frame_of(spec), 60)["spec"]["template"])["image"] == (
        "site/model:1"
    )


def test_a_cluster_without_an_image_is_refused():
    spec = request()
    spec.options["image"] = None
    with pytest.raises(ProviderError, match="component 'demeter' has no image"):
        pod_of(spec)


def test_shown_objects_contain_no_credentials():
    secrets = [
        thing
        for body in drafts.objects(request(), {"demeter": 1}).values()
        if (thing := json.loads(body))["kind"] == "Secret"
    ]
    assert {name for thing in secrets for name in thing["data"]} >= {"config.json", "tls..key.pem"}
    assert {text for thing in secrets for text in thing["data"].values()} == {""}


# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["demeter", "a_b", "A.b", "-x-", "_", "x" * 200, "é"])
def test_names_and_labels_are_valid_and_differ(text):
    assert object_name("scalable", text).replace("-", "").isalnum()
    assert len(object_name("scalable", text)) <= 63
    assert object_name("scalable", text) != object_name("scalable", f"{text}_")
    assert len(label_value(text)) <= 63
    assert label_value(text)[0].isalnum()
    assert label_value(text)[-1].isalnum()


# Mounts -------------------------------------------------------------------------------------------


def test_each_kind_of_mount_becomes_its_volume():
    sources = {
        "pvc://claim/in/2020": ({"persistentVolumeClaim": {"claimName": "claim"}}, "in/2020"),
        "configmap://name": ({"configMap": {"name": "name"}}, ""),
        "secret://name/key": ({"secret": {"secretName": "name"}}, "key"),
        "hostpath:///data/x": ({"hostPath": {"path": "/data/x"}}, ""),
        "emptydir://": ({"emptyDir": {}}, ""),
        "emptydir://10G": ({"emptyDir": {"sizeLimit": "10000000000"}}, ""),
    }
    for source, (volume, part) in sources.items():
        mount = parse_mount(source, "/there")
        assert (mount.volume, mount.part) == (volume, part)


def test_one_claim_is_one_volume_and_two_empty_directories_are_two():
    written = {"pvc://c/a": "/a", "pvc://c/b": "/b", "emptydir://1G": "/x"}
    found, mounted = volumes([parse_mount(s, p) for s, p in written.items()])
    assert len(found) == 2
    assert [entry["name"] for entry in mounted] == ["mount-0", "mount-0", "mount-1"]
    empty = parse_mount("emptydir://", "/y")
    assert len(volumes([empty, empty])[0]) == 2


@pytest.mark.parametrize(("source", "path", "words"), [
    ("/data", "/data", "path on this machine"),
    ("nfs://x", "/x", "unknown kind 'nfs'"),
    ("hostpath://data", "/x", "no absolute path"),
    ("pvc://", "/x", "is not the name of a Kubernetes object"),
    ("pvc://c/../other", "/x", "points outside"),
    ("emptydir://much", "/x", "much"),
    ("pvc://c", "x", "must start with /"),
])  # fmt: skip
def test_a_wrong_mount_is_an_error_that_says_what_to_write(source, path, words):
    with pytest.raises(ProviderError, match=words):
        parse_mount(source, path)


def test_a_bare_host_path_is_found_by_validation_with_its_place():
    spec = request([ComponentSpec("a", mounts={"/data": "/data"})])
    (fault,) = drafts.findings(spec)
    assert fault.path == ("components", "a", "mounts", "/data")
    assert "pvc://claim/path" in fault.hint
    assert "hostpath:///path" in fault.hint


# Template -----------------------------------------------------------------------------------------


def test_a_template_adds_what_we_do_not_say():
    template = {
        "metadata": {"annotations": {"team": "x"}},
        "spec": {
            "securityContext": {"runAsUser": 1000},
            "containers": [
                {"name": "scalable", "securityContext": {"readOnlyRootFilesystem": True}},
                {"name": "sidecar", "image": "s"},
            ],
            "tolerations": [{"key": "spot", "operator": "Exists"}],
        },
    }
    pod = pod_of(request(tolerations=[{"key": "gpu"}]), template=template)
    assert pod["metadata"]["annotations"]["team"] == "x"
    assert pod["metadata"]["annotations"]["scalable/tag"] == "demeter"
    assert pod["spec"]["securityContext"] == {"runAsUser": 1000}
    assert our_container(pod)["securityContext"] == {"readOnlyRootFilesystem": True}
    assert [c["name"] for c in pod["spec"]["containers"]] == ["scalable", "sidecar"]
    assert [t["key"] for t in pod["spec"]["tolerations"]] == ["gpu", "spot"]


@pytest.mark.parametrize(("theirs", "path"), [
    ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy"),
    ({"spec": {"containers": [{"name": "scalable", "image": "other"}]}}, r"spec.containers\[name=scalable\].image"),
    ({"metadata": {"labels": {"scalable/tag": "x"}}}, "metadata.labels.scalable/tag"),
])  # fmt: skip
def test_a_clash_of_the_template_names_the_path(theirs, path):
    with pytest.raises(ProviderError, match=path):
        pod_of(request(), template=theirs)


def test_equal_values_are_no_clash():
    assert merge({"spec": {"a": 1}}, {"spec": {"a": 1}}, file="f") == {"spec": {"a": 1}}


@pytest.mark.parametrize(("text", "words"), [
    ("[1]", "must be a map"),
    ("kind: Job", "its kind is 'Job'"),
    ("spce: {}", "unknown key 'spce'"),
    ("{", "is not YAML"),
    (None, "cannot be read"),
    ("spec: {restartPolicy: Always}", "spec.restartPolicy"),
])  # fmt: skip
def test_a_template_that_is_no_pod_is_found_by_validation(tmp_path, monkeypatch, text, words):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "pod.yaml").write_text(text)
    (fault,) = drafts.findings(request(pod_template="pod.yaml"))
    assert words in fault.message
    assert fault.path == ("targets", "k", "pod_template")
