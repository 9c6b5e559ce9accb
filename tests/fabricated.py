"""A cluster that is on record only; its scheduler seems to be this process."""

import time

from scalable.liveness import identify_process
from scalable.model import ClusterRecord
from scalable.model.clusters import PoolStatus
from scalable.records import ClusterDirectory

ID = "0f0e0d0c-1111-4222-8333-444455556666"
ADDRESS = "tls://127.0.0.1:4711"


def pool(wanted, running, launching=0, failed=0, **more):
    counts = {"wanted": wanted, "running": running, "launching": launching, "failed": failed}
    return PoolStatus(**counts, **more).to_dict()


STATUS = {
    "state": "running",
    "reason": None,
    "pools": {"model": pool(2, 1, 1, waiting="Priority"), "analysis": pool(1, 1)},
    "managers": [{"id": "local", "target": "local", "state": "attached", "priority": 0}],
    "ends_at": None,
    "idle_ends_at": None,
}


def put_on_record(name="one", *, uuid=ID, running=True, status=None, **more):
    values = {"provider": "local", "target": "local", "project": "climate", "owner": "me"}
    values |= {"created_at": "2026-01-01T00:00:00+00:00", "stage": "made"}
    values |= {"creator": identify_process(), "tags": ("model", "analysis")}
    values |= {"wanted": {"model": 2, "analysis": 1}}
    directory = ClusterDirectory.create(ClusterRecord(id=uuid, name=name, **(values | more)))
    directory.write_pem("-----BEGIN ca", "-----BEGIN cert", "-----BEGIN key")
    if running:
        directory.write_scheduler({**identify_process(), "address": ADDRESS})
        directory.write_status(STATUS | {"written_at": time.time()} | (status or {}))
    return directory
