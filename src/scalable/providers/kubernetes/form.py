"""Objects for the scheduler and the units of a cluster. This module does no I/O.

A form decides which objects are created and deleted. Other modules do not depend on that choice.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from scalable.manager.launcher import UnitState
from scalable.model import ComponentSpec
from scalable.providers.kubernetes import render
from scalable.providers.kubernetes.permissions import (
    MANAGER_RULES,
    OPERATOR_MANAGER_RULES,
    OPERATOR_RULES,
    RULES,
    AccessRule,
)
from scalable.providers.kubernetes.reasons import observation
from scalable.providers.kubernetes.render import ROLE, SCHEDULER

Pod = Mapping[str, Any]


@dataclass(frozen=True)
class ObjectKind:
    """A kind of object, as in API paths."""

    #: Plural name, such as ``pods``.
    plural: str
    #: API group and version, such as ``batch/v1``; empty for ``v1`` of the core group.
    group: str = ""


JOBS, PODS = ObjectKind("jobs", "batch/v1"), ObjectKind("pods")


class Form(Protocol):
    """Choice of the objects that are created for the scheduler and for each unit."""

    #: Kind of a unit's object.
    unit_kind: ObjectKind
    #: Fields of ``DeleteOptions`` for the object of a unit.
    deletion: Mapping[str, Any]
    #: True if the object of a unit is gone as soon as its pod is gone.
    ends_with_pod: bool
    #: True if Kubernetes restarts a program that has exited.
    starts_again: bool
    #: State of a pod that does not exist yet, in words.
    unmade: str
    #: Kinds that not every cluster has.
    custom_kinds: tuple[ObjectKind, ...]
    #: Hint for clusters without the ``custom_kinds``.
    installation: str
    #: Permissions that the creator of a cluster needs.
    rules: tuple[AccessRule, ...]
    #: Permissions that a manager in a pod needs.
    manager_rules: tuple[AccessRule, ...]

    def root(self, frame: render.Frame, deadline_s: int) -> render.Object:
        """Return the root object. Kubernetes stops it after ``deadline_s`` seconds."""
        ...

    def scheduler(self, frame: render.Frame) -> list[render.Object]:
        """Return the scheduler's objects, except the root and the Secret."""
        ...

    def unit(self, frame: render.Frame, component: ComponentSpec, unit: str) -> render.Object:
        """Return the object that creates one worker's pod."""
        ...

    def awaited(self, frame: render.Frame) -> list[tuple[ObjectKind, str]]:
        """Return kind and name of the objects that must be gone after the root's deletion."""
        ...

    def object_of(self, pod: Pod) -> str:
        """Return the name of the object that created a worker's pod."""
        ...

    def first_life(self, before: Pod | None, pod: Pod) -> Pod:
        """Return a program's pod, or its state ``before`` if Kubernetes has restarted it."""
        ...


class PodForm:
    """Layout in which the root object's pod is the scheduler, and each unit is a pod."""

    unit_kind = PODS
    deletion: Mapping[str, Any] = {"gracePeriodSeconds": render.GRACE_S}
    ends_with_pod = True
    starts_again = False
    unmade = "it was requested"
    custom_kinds: tuple[ObjectKind, ...] = ()
    installation = ""
    rules: tuple[AccessRule, ...] = RULES
    manager_rules: tuple[AccessRule, ...] = MANAGER_RULES

    def root(self, frame: render.Frame, deadline_s: int) -> render.Object:
        return render.root_job(frame, deadline_s)

    def scheduler(self, frame: render.Frame) -> list[render.Object]:
        return [render.service(frame)]

    def unit(self, frame: render.Frame, component: ComponentSpec, unit: str) -> render.Object:
        return render.worker_pod(frame, component, unit)

    def awaited(self, frame: render.Frame) -> list[tuple[ObjectKind, str]]:
        return [(JOBS, frame.root)]

    def object_of(self, pod: Pod) -> str:
        return str(pod["metadata"]["name"])

    def first_life(self, before: Pod | None, pod: Pod) -> Pod:  # noqa: ARG002 - of the protocol
        """Return the pod unchanged, since it is never restarted."""
        return pod


def kind_of(thing: Mapping[str, Any]) -> ObjectKind:
    """Return the kind of an object to create."""
    group = str(thing["apiVersion"])
    return ObjectKind(f"{thing['kind'].lower()}s", "" if group == "v1" else group)


# Dask operator ------------------------------------------------------------------------------------

GROUP = "kubernetes.dask.org"
VERSION = f"{GROUP}/v1"
CLUSTERS, WORKER_GROUPS = (
    ObjectKind("daskclusters", VERSION),
    ObjectKind("daskworkergroups", VERSION),
)
#: The operator's labels.
CLUSTER_NAME, COMPONENT = "dask.org/cluster-name", "dask.org/component"
WORKER_GROUP_NAME = "dask.org/workergroup-name"
KEEPER = "keeper"
KEEPER_PROGRAM = "scalable.clusters.programs.keeper"
ONCE_PROGRAM = "scalable.clusters.programs.once"
#: Resources that are enough for the keeper.
KEEPER_RESOURCES = {
    "requests": {"cpu": "50m", "memory": "300M"},
    "limits": {"cpu": "1", "memory": "300M"},
}
#: Seconds from SIGTERM until the keeper, which has nothing to finish, is killed.
KEEPER_GRACE_S = 2
#: Directory in the scheduler's container. It outlives the container, but not its pod.
RUN_DIRECTORY = "/run/scalable-once"
INSTALL = (
    "install the operator: helm install --repo https://helm.dask.org --create-namespace "
    "-n dask-operator --generate-name dask-kubernetes-operator"
)
_REFUSAL = (
    "raise SystemExit('scalable makes one worker group for each worker: scale with scalable')"
)


class OperatorForm:
    """Layout with a DaskCluster for the scheduler and a one-replica DaskWorkerGroup per unit."""

    unit_kind = WORKER_GROUPS
    deletion: Mapping[str, Any] = {"propagationPolicy": "Foreground"}
    ends_with_pod = False
    starts_again = True
    unmade = "the Dask operator has not created its pod yet"
    custom_kinds: tuple[ObjectKind, ...] = (CLUSTERS, WORKER_GROUPS)
    installation = INSTALL
    rules: tuple[AccessRule, ...] = OPERATOR_RULES
    manager_rules: tuple[AccessRule, ...] = OPERATOR_MANAGER_RULES

    def root(self, frame: render.Frame, deadline_s: int) -> render.Object:
        """Return the Job of the keeper, a pod that exits when the scheduler has stopped."""
        job = render.root_job(frame, deadline_s)
        template = job["spec"]["template"]
        address = f"tls://{_service(frame)}:{render.PORT}"
        (own,) = _ours(template["spec"])
        own["command"] = [*render.PROGRAM, KEEPER_PROGRAM, render.DIRECTORY, address]
        own["resources"] = copy.deepcopy(KEEPER_RESOURCES)
        own.pop("ports", None)
        # The keeper that replaces an evicted one continues.
        job["spec"]["backoffLimit"] = 6
        spec = {key: part for key, part in template["spec"].items() if key != "initContainers"}
        spec |= {"containers": [own], "terminationGracePeriodSeconds": KEEPER_GRACE_S}
        marks = {**template["metadata"]["labels"], ROLE: KEEPER}
        template |= {"metadata": {"labels": marks}, "spec": spec}
        return job

    def scheduler(self, frame: render.Frame) -> list[render.Object]:
        """Return the DaskCluster, and a Service if the cluster is reached by name."""
        template = render.root_job(frame, 0)["spec"]["template"]
        spec = _started_again(template["spec"])
        (own,) = _ours(spec)
        own["command"] = ["python3", "-m", ONCE_PROGRAM, f"{RUN_DIRECTORY}/began", *own["command"]]
        own["volumeMounts"].append({"name": "once", "mountPath": RUN_DIRECTORY})
        spec["volumes"].append({"name": "once", "emptyDir": {}})
        # Workers of the default group, which always exists, are not ours.
        idle = {
            "name": render.CONTAINER,
            "image": own["image"],
            "command": ["python3", "-c", _REFUSAL],
        }
        marks = {CLUSTER_NAME: frame.name, COMPONENT: "scheduler"}
        # Without a dashboard port, the operator cannot retire workers. Its schema requires the name
        # of a target port.
        port = {
            "name": "tcp-comm",
            "port": render.PORT,
            "targetPort": own["ports"][0]["name"],
            "protocol": "TCP",
        }
        metadata = frame.metadata(frame.name, SCHEDULER, **render.owned(frame))
        # The operator's Service has a different name, and is created later.
        named = [render.service(frame)] if frame.is_named else []
        return [
            *named,
            {
                "apiVersion": VERSION,
                "kind": "DaskCluster",
                "metadata": metadata,
                "spec": {
                    "idleTimeout": 0,
                    "scheduler": {
                        "metadata": _marks(template["metadata"]),
                        "spec": spec,
                        "service": {"type": "ClusterIP", "selector": marks, "ports": [port]},
                    },
                    "worker": {"replicas": 0, "spec": {"containers": [idle]}},
                },
            },
        ]

    def unit(self, frame: render.Frame, component: ComponentSpec, unit: str) -> render.Object:
        pod = render.worker_pod(frame, component, unit)
        marks = _marks(pod["metadata"])
        spec = _started_again(pod["spec"])
        (own,) = _ours(spec)
        # Otherwise the operator adds them, with an address that does not use TLS.
        given = {"DASK_WORKER_NAME": unit, "DASK_SCHEDULER_ADDRESS": "None"}
        known = {entry["name"] for entry in own["env"]}
        own["env"] += [{"name": k, "value": v} for k, v in given.items() if k not in known]
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "ownerReferences")}
        labels = {**marks["labels"], CLUSTER_NAME: frame.name, COMPONENT: "workergroup"}
        return {
            "apiVersion": VERSION,
            "kind": "DaskWorkerGroup",
            "metadata": {**metadata, **marks, "labels": labels},
            "spec": {
                "cluster": frame.name,
                "worker": {"replicas": 1, "metadata": marks, "spec": spec},
            },
        }

    def awaited(self, frame: render.Frame) -> list[tuple[ObjectKind, str]]:
        return [(JOBS, frame.root), (CLUSTERS, frame.name)]

    def object_of(self, pod: Pod) -> str:
        labels = pod["metadata"].get("labels") or {}
        return str(labels.get(WORKER_GROUP_NAME) or pod["metadata"]["name"])

    def first_life(self, before: Pod | None, pod: Pod) -> Pod:
        """Return a group's first pod, or that pod's last state once its program has stopped."""
        if before is not None:
            another = before["metadata"].get("uid") != pod["metadata"].get("uid")
            if another or observation(before).state is UnitState.ENDED:
                return before
        return as_started_once(pod)


def as_started_once(pod: Pod) -> Pod:
    """Return a pod in the state that it would have if its program had not been restarted."""
    status = pod.get("status", {})
    if status.get("phase") in ("Succeeded", "Failed"):
        return pod
    for own in status.get("containerStatuses") or ():
        restarts = own.get("restartCount")
        if own.get("name") != render.CONTAINER:
            continue
        ended = own.get("state", {}).get("terminated")
        if restarts:
            ended = own.get("lastState", {}).get("terminated") or ended or {}
        if ended is not None:
            phase = "Failed" if ended.get("exitCode", 1) else "Succeeded"
            once = {**own, "state": {"terminated": ended}}
            return {**pod, "status": {**status, "phase": phase, "containerStatuses": [once]}}
    return pod


def _started_again(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod's spec for a Deployment, where the restart policy must be Always."""
    return {**copy.deepcopy(dict(spec)), "restartPolicy": "Always"}


def _ours(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [own for own in spec["containers"] if own["name"] == render.CONTAINER]


def _marks(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: metadata[key] for key in ("labels", "annotations") if key in metadata}


def _service(frame: render.Frame) -> str:
    """Return the host name of the operator's Service."""
    return f"{frame.name}-scheduler.{frame.namespace}.svc"


# Forms --------------------------------------------------------------------------------------------


def form_of(options: Mapping[str, Any]) -> Form:
    """Return the form (choice of objects) for a target's options."""
    return OperatorForm() if options["operator"] else PodForm()
