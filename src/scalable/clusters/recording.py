"""Creation of the records of new clusters. This module does not import Dask."""

from __future__ import annotations

import logging
import os
import pwd
import re
import uuid
from datetime import UTC, datetime

from scalable.errors import ClusterError
from scalable.liveness import identify_process
from scalable.model import ClusterRecord, DeploymentSpec, Plan, names
from scalable.planning import adaptive_bounds, expectations, total_limit
from scalable.records import ClusterDirectory

logger = logging.getLogger("scalable.clusters")


def default_name(spec: DeploymentSpec) -> str:
    """Return the default name of a cluster: ``project-target``."""
    project, target = (_slug(name) for name in (spec.project_name, spec.target_name))
    # The project is cut, not the target: names differ between the targets of a project.
    project = project[: names.CLUSTER.longest - len(target) - 1]
    return _slug(f"{project}-{target}") or "cluster"


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).lstrip("-._").rstrip("-.")


def _user() -> str:
    """Return the name of the process's user, or the uid of a user without a name."""
    uid = os.geteuid()  # not USER, which sudo and su may leave as another user's
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def cluster_record(spec: DeploymentSpec, plan: Plan) -> ClusterRecord:
    """Return the record of a new cluster, with the fields that every kind of cluster has."""
    labels: dict[str, list[str]] = {}
    for tag, component in spec.components.items():
        for label in component.tags:
            labels.setdefault(label, []).append(tag)
    bounds, most = adaptive_bounds(spec), total_limit(spec)
    return ClusterRecord(
        id=str(uuid.uuid4()),
        name=default_name(spec),
        provider=spec.provider_name,
        target=spec.target_name,
        project=spec.project_name,
        owner=_user(),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        creator=identify_process(),
        lock=plan.manifest_lock,
        tags=spec.tags,
        tasks={task.name: task.component for task in spec.tasks.values()},
        labels=labels,
        wanted=dict(plan.scale_plan.workers_by_tag),
        max_workers=None if most is None else most[1],
        adaptive={tag: (own.minimum, own.maximum) for tag, own in bounds.pools.items()},
        adaptive_maximum=bounds.maximum,
        expectations=expectations(spec, plan),
        objective=plan.objective,
        policy=plan.policy,
    )


def put_on_record(record: ClusterRecord) -> ClusterDirectory | None:
    """Record this process's cluster, so that it is listed. Return None if that fails."""
    try:
        return ClusterDirectory.create(record)
    except (OSError, ClusterError) as error:
        logger.warning("this cluster will not be listed: %s", error)
        return None
