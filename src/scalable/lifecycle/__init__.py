"""Clusters as things of their own: wired together, started, recorded, scaled and ended.

What a session adds (manifest, plan, client) is in ``session``; how a place starts workers is in
``providers``.
"""

from scalable.lifecycle.attached_deployment import AttachedDeployment
from scalable.lifecycle.deployment import Deployment
from scalable.lifecycle.record import SessionRecord

__all__ = ["AttachedDeployment", "Deployment", "SessionRecord"]
