"""Options of a target of the kubernetes provider."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from scalable.manifest.fields import (
    Argument,
    Duration,
    Environment,
    Image,
    PositiveInt,
    ProviderOptions,
    Record,
    Text,
    TextMap,
)


class Resources(Record):
    """Resources of a pod's container, by the names that Kubernetes has for them."""

    requests: TextMap = Field(default={}, description="Reserved amounts, such as `memory: 2Gi`.")
    limits: TextMap = Field(default={}, description="Upper limits.")


class KubernetesOptions(ProviderOptions):
    """Options of a target with ``provider: kubernetes``."""

    namespace: Argument = Field(default="default", description="Namespace of all pods.")
    image: Image | None = Field(
        default=None, description="Image of the scheduler, and of components that name none."
    )
    n_workers: PositiveInt | None = Field(
        default=None, description="Number of workers in all pools; by default one for each pool."
    )
    service_account: Argument | None = Field(
        default=None, description="Service account of the pods."
    )
    image_pull_secrets: tuple[Argument, ...] = Field(
        default=(), description="Secrets with which images are pulled."
    )
    resources: Resources | None = Field(
        default=None, description="Requests and limits beside those of the components."
    )
    env: Environment = Field(default={}, description="Environment of all pods.")
    mounts: TextMap = Field(
        default={},
        description="Mounts of all workers: pvc://claim/path, configmap://name/key, "
        "secret://name/key, hostpath:///path or emptydir://size, and the path in the pod.",
    )
    tolerations: tuple[dict[str, Any], ...] = Field(
        default=(), description="Tolerations of the pods, as Kubernetes writes them."
    )
    node_selector: TextMap = Field(default={}, description="Labels that nodes must have.")
    priority_class: Argument | None = Field(default=None, description="Priority class of the pods.")
    pod_template: Text | None = Field(
        default=None, description="YAML file of a pod that all pods are merged with."
    )
    manager: Literal["here", "there"] | None = Field(
        default=None,
        description="Where the manager of a detached cluster runs: `there` in a pod (default), or "
        "`here` in a process of this machine.",
    )
    manager_service_account: Argument | None = Field(
        default=None,
        description="Service account of the managers' pods; by default one is made for each "
        "cluster, with a Role and a RoleBinding.",
    )
    context: Argument | None = Field(
        default=None, description="Context of the kubeconfig; by default the current one."
    )
    start_timeout: Duration = Field(
        default="10m", description="Time within which the scheduler's pod has to run."
    )
    abandoned_after: Duration = Field(
        default="5m",
        description="Time without its creator after which a cluster ends by itself.",
    )
    allow_version_mismatch: bool = Field(
        default=False,
        description="Accept an image with another release of distributed than this machine's; "
        "the difference is only warned of.",
    )
    reconnect_within: Duration = Field(
        default="2m",
        description="Time for which calls wait for a client whose connection was cut.",
    )
    operator: bool = Field(
        default=False,
        description="Run the cluster through the Dask Kubernetes operator, where it is installed.",
    )
