"""Records of clusters that tests make up."""

import uuid

from scalable.model import ClusterRecord


def made_record(name="one", **more):
    values = dict.fromkeys(("provider", "target", "project", "owner"), "local")
    values |= {"id": str(uuid.uuid4()), "created_at": "2026-01-01T00:00:00+00:00"}
    return ClusterRecord(**values | {"name": name} | more)
