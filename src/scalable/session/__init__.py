"""The one place where the rooms meet: manifest, plan, cluster, client and record of one user."""

from scalable.session.session import ScalableSession

__all__ = ["ScalableSession"]
