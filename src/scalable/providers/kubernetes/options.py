"""Options of a target of the kubernetes provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from scalable.manifest.fields import (
    Argument,
    Record,
    Text,
    TextMap,
)
from scalable.providers.remote.options import RemoteOptions


class Resources(Record):
    """Resources of a pod's container, under their Kubernetes names."""

    requests: TextMap = Field(default={}, description="Reserved amounts, such as `memory: 2Gi`.")
    limits: TextMap = Field(default={}, description="Upper limits.")


class KubernetesOptions(RemoteOptions):
    """Options of a target with ``provider: kubernetes``."""

    advice: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("imagePullPolicy", "image_pull_policy"),
        "write imagePullPolicy for the container `scalable` in a file that `pod_template` names",
    )

    namespace: Argument = Field(default="default", description="Namespace of all pods.")
    service_account: Argument | None = Field(
        default=None, description="Service account of the pods."
    )
    image_pull_secrets: tuple[Argument, ...] = Field(
        default=(), description="Secrets with which images are pulled."
    )
    resources: Resources | None = Field(
        default=None, description="Requests and limits in addition to those of the components."
    )
    mounts: TextMap = Field(
        default={},
        description="Mounts of all workers, each with its path in the pod: pvc://claim/path, "
        "configmap://name/key, secret://name/key, hostpath:///path or emptydir://size.",
    )
    tolerations: tuple[dict[str, Any], ...] = Field(
        default=(), description="Tolerations of the pods, as in Kubernetes."
    )
    node_selector: TextMap = Field(default={}, description="Labels that nodes must have.")
    priority_class: Argument | None = Field(default=None, description="Priority class of the pods.")
    pod_template: Text | None = Field(
        default=None, description="YAML file that describes a pod. Every pod is merged with it."
    )
    manager_service_account: Argument | None = Field(
        default=None,
        description="Service account of the managers' pods. Default: a new one for each cluster, "
        "with a Role and a RoleBinding.",
    )
    context: Argument | None = Field(
        default=None, description="Context of your kubeconfig. Default: the current one."
    )
    operator: bool = Field(
        default=False,
        description="Run the cluster through the Dask Kubernetes operator. It must be installed.",
    )
