"""Sessions, which combine manifest, plan, cluster, client and run record.
``request`` checks and plans without Dask. ``session`` runs a workflow on a cluster.
"""

from typing import TYPE_CHECKING

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.session.request import Request
    from scalable.session.session import ScalableSession

__all__ = ["Request", "ScalableSession"]

__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.session.request": ("Request",),
        "scalable.session.session": ("ScalableSession",),
    },
)
