"""Manifest files: reading, checking, and resolving for one target into a DeploymentSpec.
This package does not import the providers, and contacts nothing.
"""

from typing import TYPE_CHECKING

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.manifest.fields import ProviderOptions
    from scalable.manifest.manifest import Manifest, choose_target, read_targets
    from scalable.manifest.resolved import ResolvedManifest
    from scalable.manifest.schema_document import json_schema
    from scalable.manifest.starter import starter_manifest, starter_workflow

__all__ = [
    "Manifest",
    "ProviderOptions",
    "ResolvedManifest",
    "choose_target",
    "json_schema",
    "read_targets",
    "starter_manifest",
    "starter_workflow",
]

__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.manifest.manifest": ("Manifest", "choose_target", "read_targets"),
        "scalable.manifest.fields": ("ProviderOptions",),
        "scalable.manifest.schema_document": ("json_schema",),
        "scalable.manifest.resolved": ("ResolvedManifest",),
        "scalable.manifest.starter": ("starter_manifest", "starter_workflow"),
    },
)
