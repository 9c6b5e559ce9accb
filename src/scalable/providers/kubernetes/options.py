"""Options of a target of the kubernetes provider."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from scalable.manifest.fields import (
    Argument,
    Environment,
    Image,
    PositiveInt,
    ProviderOptions,
    Record,
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
    resources: Resources | None = Field(
        default=None, description="Requests and limits beside those of the components."
    )
    env: Environment = Field(default={}, description="Environment of all pods.")
    tolerations: tuple[dict[str, Any], ...] = Field(
        default=(), description="Tolerations of the pods, as Kubernetes writes them."
    )
    node_selector: TextMap = Field(default={}, description="Labels that nodes must have.")
    context: Argument | None = Field(
        default=None, description="Context of the kubeconfig; by default the current one."
    )
