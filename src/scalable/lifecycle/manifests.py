"""The request of a target, read again from what a cluster keeps of its manifest."""

from __future__ import annotations

import dataclasses

from scalable.manifest import Manifest
from scalable.providers.registry import option_models
from scalable.records import ClusterDirectory
from scalable.spec import DeploymentSpec


def spec_for(directory: ClusterDirectory, manager: str, target: str) -> DeploymentSpec:
    """What a manager of a cluster is asked for.

    Parameters
    ----------
    directory
        The cluster.
    manager, target
        Id of the manager, and the target that it provisions on.
    """
    file = directory.manager_directory(manager) / "manifest.yaml"
    manifest = Manifest.load(file, option_models(), target=target)
    spec = manifest.resolve(target).spec
    return dataclasses.replace(spec, workflow_dir=directory.record().workflow_dir)
