"""The request of a target, read again from what a cluster keeps of its manifest."""

from __future__ import annotations

import dataclasses

from scalable.manifest import Manifest
from scalable.providers.registry import option_models
from scalable.records import ClusterDirectory
from scalable.spec import DeploymentSpec


def spec_for(directory: ClusterDirectory, target: str) -> DeploymentSpec:
    """What a target of a cluster's manifest asks for.

    Parameters
    ----------
    directory
        The cluster.
    target
        Its own target, or one of its managers'.
    """
    manifest = Manifest.load(directory.path / "manifest.yaml", option_models(), target=target)
    spec = manifest.resolve(target).spec
    return dataclasses.replace(spec, workflow_dir=directory.record().workflow_dir)
