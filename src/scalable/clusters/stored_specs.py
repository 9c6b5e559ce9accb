"""Deployment specs that a detached cluster stores for its scheduler and managers."""

from __future__ import annotations

import dataclasses
import logging

from scalable.errors import ClusterError
from scalable.model import DeploymentSpec
from scalable.model.codec import SpecFormatError, decode_spec, encode_spec
from scalable.records import ClusterDirectory

logger = logging.getLogger("scalable.clusters")


def encoded(spec: DeploymentSpec) -> str | None:
    """Return the JSON form of a spec, or None if its options have no JSON form.
    Options of a provider without an option model may be any objects. Then :func:`stored_spec` reads
    the manifest instead.
    """
    try:
        return encode_spec(spec)
    except TypeError as error:
        logger.debug("the spec of target %s is not stored: %s", spec.target_name, error)
        return None


def stored_spec(directory: ClusterDirectory, manager: str | None = None) -> DeploymentSpec:
    """Return the spec of a cluster's scheduler (``manager`` None) or of one of its managers.
    Raise ClusterError if the file is damaged, or has another release's format.
    """
    text = directory.spec_text(manager)
    if text is None:
        return _from_manifest(directory, manager)
    try:
        return decode_spec(text)
    except SpecFormatError as error:
        raise ClusterError(f"the stored spec of cluster {directory.id} is {error}") from error


def _from_manifest(directory: ClusterDirectory, manager: str | None) -> DeploymentSpec:
    # Imported here because it is rarely needed: importing pydantic takes longer than starting a
    # manager.
    from scalable.manifest import Manifest
    from scalable.providers.registry import option_models

    record = directory.record()
    target = record.target if manager is None else record.managers[manager]["target"]
    file = directory.manifest_path(manager)
    spec = Manifest.load(file, option_models(), target=target).resolve(target).spec
    return dataclasses.replace(spec, workflow_dir=record.workflow_dir)
