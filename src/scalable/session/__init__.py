"""Sessions: the one place where manifest, plan, cluster, client and run record meet.

``request`` checks and plans what a manifest asks of a target, without loading the engine;
``session`` runs it; ``detached`` starts clusters that outlive the process; ``threads`` describes
pools on this machine without a manifest.
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
