"""The client of a session, configured from the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scalable.providers.registry import provider_traits
from scalable.spec import DeploymentSpec
from scalable.spec.remembering import Keeping, Remembering

if TYPE_CHECKING:
    from scalable.client.client import ScalableClient


def connected_client(
    cluster: Any, spec: DeploymentSpec, keeping: Keeping | None = None
) -> ScalableClient:
    """Return a client that routes by the manifest's names, and publish the session's storage."""
    from scalable.client.client import ScalableClient
    from scalable.protocol.operations import STORAGE

    client = ScalableClient(cluster, **client_options(spec, keeping))
    if spec.storage_url is not None:
        client.set_metadata(STORAGE, spec.storage_url)
    return client


def client_options(spec: DeploymentSpec, keeping: Keeping | None = None) -> dict[str, Any]:
    """Return the arguments of ``ScalableClient`` that follow from the manifest."""
    labels: dict[str, list[str]] = {}
    for tag, component in spec.components.items():
        for label in component.tags:
            labels.setdefault(label, []).append(tag)
    tasks = {task.name: task.component for task in spec.tasks.values()}
    return {
        "tasks": tasks,
        "labels": labels,
        "tags": spec.tags,
        "remembering": Remembering.of(
            spec, keeping, images_here=provider_traits(spec.provider_name).on_this_machine
        ),
    }
