"""Life of clusters: creating, recording, finding, scaling and deleting them.
``session`` handles the manifest, the plan and the client. ``providers`` start workers on a backend.
"""

from typing import TYPE_CHECKING

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.clusters.connecting import AttachedDeployment
    from scalable.clusters.deployment import Deployment
    from scalable.clusters.record import SessionRecord

__all__ = ["AttachedDeployment", "Deployment", "SessionRecord"]

__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.clusters.connecting": ("AttachedDeployment",),
        "scalable.clusters.deployment": ("Deployment",),
        "scalable.clusters.record": ("SessionRecord",),
    },
)
