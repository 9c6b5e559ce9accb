"""Clusters as things of their own: wired, started, recorded, found, scaled and ended.

The manifest, the plan and the client of a session are in ``session``; starting workers in a place
is in ``providers``.
"""

from scalable.lifecycle.attached_deployment import AttachedDeployment
from scalable.lifecycle.deployment import Deployment
from scalable.lifecycle.record import SessionRecord

__all__ = ["AttachedDeployment", "Deployment", "SessionRecord"]
