"""Objects of a cluster as the API server expects them. This module does no I/O.

The root object is a Job. Its pod is the scheduler, and the Job owns all other objects. When the
scheduler has stopped or the Job's deadline has passed, Kubernetes deletes the Job with these
objects.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scalable.errors import ProviderError
from scalable.model import ComponentSpec
from scalable.protocol.addresses import HOST_VARIABLE
from scalable.settings import ALLOW_VERSION_MISMATCH, IMAGE
from scalable.units import parse_bytes

if TYPE_CHECKING:
    from scalable.worker.config import WorkerConfig
import hashlib

# Names and labels ---------------------------------------------------------------------------------


LONGEST = 63
#: Prefix of our labels and annotations.
PREFIX = "scalable/"
CLUSTER, MANAGER, OWNER, ROLE, TAG, UNIT = (
    f"{PREFIX}{word}" for word in ("cluster", "manager", "owner", "role", "tag", "unit")
)
#: Roles of objects.
SCHEDULER, WORKER, MANAGING = "scheduler", "worker", "manager"
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def object_name(*parts: str) -> str:
    """Return a valid, unique object name. A changed or cut name gets a checksum."""
    written = "-".join(parts)
    name = re.sub(r"[^a-z0-9]+", "-", written.lower()).strip("-")
    if name == written and len(name) <= LONGEST:
        return name
    checksum = _checksum(written)
    return f"{name[: LONGEST - len(checksum) - 1].rstrip('-')}-{checksum}".lstrip("-")


def root_name(owner: str, cluster: str) -> str:
    """Return the name of a detached cluster's root object, unique for owner and name."""
    return object_name("scalable", owner, cluster, _checksum(f"{len(owner)} {owner} {cluster}"))


def label_value(text: str) -> str:
    """Return a valid and unique label value for a string."""
    if _LABEL.fullmatch(text):
        return text
    checksum = _checksum(text)
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[: LONGEST - len(checksum) - 1]
    return f"{word.strip('-_.')}-{checksum}".lstrip("-")


def label(thing: Mapping[str, Any], key: str) -> str:
    """Return the value of an object's label, or an empty string."""
    return str((thing["metadata"].get("labels") or {}).get(key, ""))


def labels(cluster: str, role: str, **more: str) -> dict[str, str]:
    """Return the labels of an object with a role. Keys of ``more`` get :data:`PREFIX`."""
    return {
        "app.kubernetes.io/name": "scalable",
        "app.kubernetes.io/managed-by": "scalable",
        CLUSTER: cluster,
        ROLE: role,
        **{f"{PREFIX}{key}": label_value(value) for key, value in more.items()},
    }


def selector(chosen: Mapping[str, str]) -> str:
    """Return a label selector for these labels."""
    return ",".join(f"{key}={value}" for key, value in chosen.items())


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


#: Name of our container in each pod.
CONTAINER = "scalable"
#: Directory of the credentials and the configuration in each pod.
DIRECTORY = "/etc/scalable"
CONFIG = "config.json"
PORT = 8786
#: Requests of schedulers and managers, unless the target's ``resources`` have them.
SERVICE_REQUESTS = {"cpu": "250m", "memory": "512Mi"}
GPU = "nvidia.com/gpu"
#: Directory of the program's own files in the pods of schedulers and managers.
STATE = "/run/scalable"
#: Seconds until Kubernetes deletes a Job that has ended, with all objects that it owns. The Job of
#: a detached cluster stays longer, so that a failure is reported and its log is available.
KEPT_S = 30
FAILED_KEPT_S = 3600
#: Seconds from SIGTERM until a worker is killed: more than it takes to hand over its results.
GRACE_S = 45
#: Seconds by which the root object's deadline exceeds the time to start or to live.
MARGIN_S = 120
#: Command that runs a module as the first process of a container.
PROGRAM = ("python3", "-m", "scalable.clusters.programs.first_process")
#: Module that runs schedulers and managers.
SERVICE_PROGRAM = "scalable.clusters.programs.remote"

Object = dict[str, Any]


@dataclass(frozen=True)
class Frame:
    """Facts shared by the objects of one cluster."""

    cluster_id: str
    #: Id of the manager that starts the workers.
    manager: str
    #: Options of the target.
    options: Mapping[str, Any]
    #: The user's pod template; empty without one.
    template: Mapping[str, Any] = field(default_factory=dict)
    #: ``uid`` of the root object, which the API server chooses; empty before it exists.
    root_uid: str = ""
    #: Unique name of a detached cluster's root object, from name and owner; empty for a session.
    root_name: str = ""
    #: Name in Kubernetes of a detached cluster's creator; empty for a session.
    owner: str = ""

    @property
    def name(self) -> str:
        """Name of the Service, and name prefix of other objects."""
        return object_name("scalable", self.cluster_id)

    @property
    def root(self) -> str:
        return self.root_name or self.name

    @property
    def detached(self) -> bool:
        """True if the cluster outlives its creator."""
        return bool(self.root_name)

    @property
    def is_named(self) -> bool:
        """True if programs in the backend reach the scheduler by its Service's name."""
        return self.detached or self.options["manager"] == "there"

    @property
    def namespace(self) -> str:
        return str(self.options["namespace"])

    def metadata(self, name: str, role: str, **more: str) -> Object:
        """Return the metadata of an object that belongs to the root object."""
        # Not as its controller: the Job's controller would release pods that it has not created.
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": self.root,
            "uid": self.root_uid,
        }
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": labels(self.cluster_id, role, **more),
            "ownerReferences": [owner],
        }


def to_body(thing: Mapping[str, Any]) -> bytes:
    """Return an object as it is sent and shown: JSON with indentation."""
    return (json.dumps(thing, indent=2) + "\n").encode()


def root_job(frame: Frame, deadline_s: int) -> Object:
    """Return the root object, with the scheduler's pod and a deadline in seconds."""
    marks = labels(frame.cluster_id, SCHEDULER, **owned(frame))
    own = {"namespace": frame.namespace, "name": frame.root, "labels": marks}
    program = [SERVICE_PROGRAM, SCHEDULER, *program_options(frame)]
    job = service_job(frame, own, program, scheduler_secret_name(frame))
    spec = job["spec"]
    spec["backoffLimit"] = 0
    spec["activeDeadlineSeconds"] = deadline_s
    spec["ttlSecondsAfterFinished"] = FAILED_KEPT_S if frame.detached else KEPT_S
    container = spec["template"]["spec"]["containers"][0]
    container["ports"] = [{"name": "dask", "containerPort": PORT, "protocol": "TCP"}]
    return job


def program_options(frame: Frame) -> list[str]:
    """Return the options of the scheduler's and the managers' programs."""
    address = service_address(frame.cluster_id, frame.namespace)
    return ["--files", DIRECTORY, "--state", STATE, "--address", address]


def service_address(cluster_id: str, namespace: str) -> str:
    """Return a scheduler's address, by the name of its Service."""
    return f"tls://{object_name('scalable', cluster_id)}.{namespace}.svc:{PORT}"


def service_job(
    frame: Frame, metadata: Object, program: list[str], secret: str, account: str | None = None
) -> Object:
    """Return the Job of a scheduler or manager.
    ``secret`` is the Secret with its files. ``account`` is its service account, or None.
    """
    container: Object = {
        "name": CONTAINER,
        "image": image_of(frame, None),
        "command": [literal(word) for word in (*PROGRAM, *program)],
        "env": _environment(frame, None, _scheduler_variables(frame)),
        "volumeMounts": [
            {"name": "credentials", "mountPath": DIRECTORY, "readOnly": True},
            {"name": "state", "mountPath": STATE},
        ],
    }
    if resources := _resources(frame, None):
        container["resources"] = resources
    found: list[Object] = [_secret_volume(secret), {"name": "state", "emptyDir": {}}]
    pod = _pod(frame, {"labels": metadata["labels"]}, container, found)
    if account is not None:
        pod["spec"] |= {"serviceAccountName": account, "automountServiceAccountToken": True}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "template": {"metadata": pod["metadata"], "spec": pod["spec"]},
        },
    }


def pod_of(job: Mapping[str, Any]) -> Object:
    """Return the pod that Kubernetes creates for a Job, except for its name."""
    metadata, template = job["metadata"], job["spec"]["template"]
    own = {"generateName": f"{metadata['name']}-", "namespace": metadata["namespace"]}
    labels = {"labels": template["metadata"].get("labels") or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": own | labels, "spec": template["spec"]}


def service(frame: Frame) -> Object:
    """Return the Service by which clients inside the cluster reach the scheduler."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": frame.metadata(frame.name, SCHEDULER),
        "spec": {
            "type": "ClusterIP",
            "selector": labels(frame.cluster_id, SCHEDULER),
            "ports": [{"name": "dask", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
        },
    }


def secret(frame: Frame, name: str, role: str, files: Mapping[str, str]) -> Object:
    """Return the Secret with the ``files`` of a scheduler, a manager or workers."""
    coded = {file: base64.b64encode(text.encode()).decode() for file, text in files.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": frame.metadata(name, role, **owned(frame)),
        "type": "Opaque",
        "data": coded,
    }


def scheduler_secret_name(frame: Frame) -> str:
    """Return the name of the Secret with the scheduler's credentials and configuration."""
    return object_name(frame.name, SCHEDULER)


def worker_secret_name(frame: Frame, tag: str) -> str:
    """Return the name of the Secret with a tag's credentials and configuration."""
    return object_name(frame.name, WORKER, tag)


def worker_pod(frame: Frame, component: ComponentSpec, unit: str) -> Object:
    """Return the pod of one worker."""
    tag = component.name
    name = object_name("scalable", frame.cluster_id.partition("-")[0], unit)
    metadata = frame.metadata(name, WORKER, tag=tag, unit=unit, manager=frame.manager)
    metadata["annotations"] = {TAG: tag, UNIT: unit}
    asked = {**frame.options["mounts"], **component.mounts}
    found, mounted = volumes([parse_mount(source, path) for source, path in asked.items()])
    preload = [] if component.preload_script is None else [component.preload_script]
    program = [*PROGRAM, "scalable.worker.program", f"{DIRECTORY}/{CONFIG}", unit]
    container = {
        "name": CONTAINER,
        "image": image_of(frame, component),
        "command": [literal(word) for word in (*program, *preload)],
        "env": _environment(frame, component, component.environment(component.slots)),
        "resources": _resources(frame, component),
        "volumeMounts": [
            {"name": "credentials", "mountPath": DIRECTORY, "readOnly": True},
            *mounted,
        ],
    }
    own = [_secret_volume(worker_secret_name(frame, tag)), *found]
    return {"apiVersion": "v1", "kind": "Pod", **_pod(frame, metadata, container, own)}


def worker_selector(frame: Frame) -> dict[str, str]:
    """Return labels that only the workers of the frame's manager have."""
    return labels(frame.cluster_id, WORKER) | {MANAGER: label_value(frame.manager)}


def image_of(frame: Frame, component: ComponentSpec | None) -> str:
    """Return the image of a component, or of the scheduler. Raises ProviderError without one."""
    own = None if component is None else component.image
    image = own or frame.options["image"]
    if image is None:
        noun = "the scheduler" if component is None else f"component {component.name!r}"
        raise ProviderError(
            f"{noun} has no image",
            hint="give image: in the target; docs/images.md shows how to make one",
        )
    return str(image).removeprefix("docker://")


def worker_secret(frame: Frame, tag: str, config: WorkerConfig) -> Object:
    """Return the Secret with the credentials and configuration of a tag's workers."""
    text = json.dumps(dataclasses.asdict(config))
    return secret(frame, worker_secret_name(frame, tag), WORKER, {CONFIG: text})


def owned(frame: Frame) -> dict[str, str]:
    """Return the label by which the owner of a detached cluster finds its objects."""
    return {"owner": frame.owner} if frame.detached else {}


def _pod(frame: Frame, metadata: Object, container: Object, found: list[dict[str, Any]]) -> Object:
    options = frame.options
    account = options["service_account"]
    spec: Object = {
        "restartPolicy": "Never",
        # Our programs do not send requests to the API server.
        "automountServiceAccountToken": account is not None,
        "terminationGracePeriodSeconds": GRACE_S,
        "containers": [container],
        "volumes": found,
    }
    given = {
        "serviceAccountName": account,
        "imagePullSecrets": [{"name": name} for name in options["image_pull_secrets"]],
        "tolerations": [dict(toleration) for toleration in options["tolerations"]],
        "nodeSelector": dict(options["node_selector"]),
        "priorityClassName": options["priority_class"],
    }
    spec |= {key: value for key, value in given.items() if value}
    pod = {"metadata": metadata, "spec": spec}
    theirs = {key: part for key, part in frame.template.items() if key in pod}
    return _restricted(merge(theirs, pod, file=str(options["pod_template"])))


def _restricted(pod: Object) -> Object:
    """Return a pod that the Pod Security Standard ``restricted`` allows, unless it may run as root.
    Root without capabilities could not use other users' files. The template takes precedence.
    """
    spec = pod["spec"]
    given = spec.get("securityContext") or {}
    if given.get("runAsNonRoot"):
        spec["securityContext"] = {"seccompProfile": {"type": "RuntimeDefault"}, **given}
        for own in spec["containers"]:
            if own["name"] == CONTAINER:
                own["securityContext"] = _NO_PRIVILEGES | (own.get("securityContext") or {})
    return pod


_NO_PRIVILEGES = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _secret_volume(name: str) -> Object:
    # Readable for the owner only: programs refuse credentials that others can read.
    return {"name": "credentials", "secret": {"secretName": name, "defaultMode": 0o400}}


def _scheduler_variables(frame: Frame) -> dict[str, str]:
    return {ALLOW_VERSION_MISMATCH: "1"} if frame.options["allow_version_mismatch"] else {}


def literal(text: str) -> str:
    """Escape a value, since Kubernetes expands ``$$`` and ``$(NAME)``."""
    return text.replace("$", "$$")


def _environment(
    frame: Frame, component: ComponentSpec | None, own: Mapping[str, str]
) -> list[Object]:
    # The output of tasks appears immediately, and not when a buffer is full. Errors about missing
    # parts of an image contain its name.
    written = {"PYTHONUNBUFFERED": "1", **frame.options["env"], **own}
    written[IMAGE] = image_of(frame, component)
    entries: list[Object] = [{"name": k, "value": literal(text)} for k, text in written.items()]
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    return [{"name": HOST_VARIABLE, "valueFrom": address}, *entries]


def _resources(frame: Frame, component: ComponentSpec | None) -> Object:
    more = frame.options["resources"] or {"requests": {}, "limits": {}}
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if component is None:
        # Kubernetes ends pods without requests first when a node runs out of memory.
        free = SERVICE_REQUESTS.keys() - more["requests"].keys() - more["limits"].keys()
        requests = {key: SERVICE_REQUESTS[key] for key in sorted(free)}
    else:
        requests["cpu"] = f"{component.cpus:g}"
        if component.memory_bytes is not None:
            requests["memory"] = limits["memory"] = str(component.memory_bytes)
        if component.gpus:
            requests[GPU] = limits[GPU] = str(component.gpus)
    own = {
        "requests": {**more["requests"], **requests},
        "limits": {**more["limits"], **limits},
    }
    return {key: amounts for key, amounts in own.items() if amounts}


# Template -----------------------------------------------------------------------------------------

#: Lists whose items are identified by a key. Items of other lists are appended.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
}


def merge(template: Mapping[str, Any], ours: Mapping[str, Any], *, file: str) -> dict[str, Any]:
    """Merge a pod template with a generated pod. Raises ProviderError for conflicts."""
    return _merged_map(template, ours, "", file)


def _merged_map(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], path: str, file: str
) -> dict[str, Any]:
    merged = dict(ours)
    for key, value in theirs.items():
        at = f"{path}.{key}" if path else key
        merged[key] = _merged(value, ours[key], key, at, file) if key in ours else value
    return merged


def _merged(theirs: Any, ours: Any, key: str, path: str, file: str) -> Any:
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        return _merged_map(theirs, ours, path, file)
    if isinstance(theirs, list) and isinstance(ours, list):
        return _merged_list(theirs, ours, _KEYS.get(key), path, file)
    if theirs == ours:
        return ours
    raise ProviderError(
        f"pod_template {file}: {path} is {theirs!r}, and scalable sets it to {ours!r}",
        hint="remove it from the template, or set it in the manifest",
    )


def _merged_list(
    theirs: list[Any], ours: list[Any], key: str | None, path: str, file: str
) -> list[Any]:
    if key is None:
        return [*ours, *(item for item in theirs if item not in ours)]
    known = {item[key]: number for number, item in enumerate(ours)}
    merged = list(ours)
    for item in theirs:
        name = item.get(key) if isinstance(item, Mapping) else None
        number = known.get(name)
        if number is None:
            merged.append(item)
        else:
            merged[number] = _merged_map(item, ours[number], f"{path}[{key}={name}]", file)
    return merged


def fault(template: object) -> str | None:
    """Return why a value cannot be a pod template, or None if it can."""
    if not isinstance(template, Mapping):
        return "it must be a map with metadata and spec"
    odd = sorted(set(map(str, template)) - {"apiVersion", "kind", "metadata", "spec"})
    if odd:
        return f"unknown key {odd[0]!r}; a pod has metadata and spec"
    if template.get("kind", "Pod") != "Pod":
        return f"its kind is {template['kind']!r}, and must be Pod"
    parts = [
        part for part in ("metadata", "spec") if not isinstance(template.get(part, {}), Mapping)
    ]
    return f"{parts[0]} must be a map" if parts else None


# Mounts -------------------------------------------------------------------------------------------

SOURCES = (
    "pvc://claim/path, configmap://name/key, secret://name/key, hostpath:///path or emptydir://size"
)
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class Mount:
    """One mount of a pod."""

    #: The volume in the form of Kubernetes, without its name.
    volume: Mapping[str, Any]
    #: Path in the pod.
    path: str
    #: Path inside the volume; empty for the whole volume.
    part: str = ""


def parse_mount(source: str, path: str) -> Mount:
    """Return the mount of a source such as ``pvc://claim/path``, or raise ProviderError."""
    kind, separator, rest = source.partition("://")
    if not separator:
        raise ProviderError(
            f"mount {source!r} is a path on this machine, which pods cannot read",
            hint=f"write {SOURCES}",
        )
    if kind not in _KINDS:
        raise ProviderError(
            f"mount {source!r} has the unknown kind {kind!r}", hint=f"use {SOURCES}"
        )
    if not path.startswith("/"):
        raise ProviderError(f"mount {source!r}: the path in the pod, {path!r}, must start with /")
    volume, part = _KINDS[kind](source, rest)
    if ".." in part.split("/"):
        raise ProviderError(
            f"mount {source!r} points outside its volume, because its path contains '..'"
        )
    return Mount(volume, path, part)


def volumes(mounts: list[Mount]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the ``volumes`` and ``volumeMounts`` of a pod. Equal sources share a volume."""
    found: list[Mapping[str, Any]] = []
    mounted = []
    for mount in mounts:
        # Two empty directories are two volumes, even with the same size.
        if mount.volume not in found or "emptyDir" in mount.volume:
            found.append(mount.volume)
            number = len(found) - 1
        else:
            number = found.index(mount.volume)
        entry = {"name": f"mount-{number}", "mountPath": mount.path}
        if mount.part:
            entry["subPath"] = mount.part
        mounted.append(entry)
    return [{"name": f"mount-{n}", **volume} for n, volume in enumerate(found)], mounted


def _named(source: str, rest: str) -> tuple[str, str]:
    name, _, part = rest.partition("/")
    if not _NAME.fullmatch(name):
        raise ProviderError(f"mount {source!r}: {name!r} is not the name of a Kubernetes object")
    return name, part.strip("/")


def _claim(source: str, rest: str) -> tuple[dict[str, Any], str]:
    name, part = _named(source, rest)
    return {"persistentVolumeClaim": {"claimName": name}}, part


def _config_map(source: str, rest: str) -> tuple[dict[str, Any], str]:
    name, part = _named(source, rest)
    return {"configMap": {"name": name}}, part


def _secret(source: str, rest: str) -> tuple[dict[str, Any], str]:
    name, part = _named(source, rest)
    return {"secret": {"secretName": name}}, part


def _host_path(source: str, rest: str) -> tuple[dict[str, Any], str]:
    if not rest.startswith("/"):
        raise ProviderError(
            f"mount {source!r} has no absolute path", hint="write hostpath:///path, with three /"
        )
    return {"hostPath": {"path": rest}}, ""


def _empty(source: str, rest: str) -> tuple[dict[str, Any], str]:
    if not rest:
        return {"emptyDir": {}}, ""
    try:
        size = parse_bytes(rest)
    except ValueError as error:
        raise ProviderError(f"mount {source!r}: {error}", hint="write emptydir://10G") from error
    return {"emptyDir": {"sizeLimit": str(size)}}, ""


_KINDS = {
    "pvc": _claim,
    "configmap": _config_map,
    "secret": _secret,
    "hostpath": _host_path,
    "emptydir": _empty,
}
