"""Sessions: the one place where manifest, plan, cluster, client and run record meet.

``request`` checks a manifest and plans a run; ``session`` runs a workflow on a cluster;
``detached`` starts clusters that outlive the process; ``local_pools`` describes pools on this
machine without a manifest. ``request`` imports no Dask.
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
