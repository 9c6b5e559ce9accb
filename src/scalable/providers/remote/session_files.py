"""Files of a session's cluster, for its scheduler's program."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime

from scalable.model import ClusterRecord, DeploymentSpec
from scalable.model.codec import encode_spec
from scalable.planning import adaptive_bounds, expectations
from scalable.records.directory import MANIFEST, PLAN, RECORD, SPEC, TOKEN
from scalable.records.packing import CREDENTIALS, record_in
from scalable.units import parse_duration

#: Relative paths of the files.
FILES = (RECORD, SPEC, MANIFEST, PLAN, TOKEN, *CREDENTIALS)
#: Default number of seconds for which idle workers outlive a manager.
MANAGER_GRACE_S = 1800.0


def session_files(
    spec: DeploymentSpec, cluster_id: str, credentials: tuple[str, str, str]
) -> dict[str, str]:
    """Return the files by path, with PEM ``credentials``: CA certificate, certificate and key."""
    bounds = adaptive_bounds(spec)
    record = ClusterRecord(
        id=cluster_id,
        name=f"{spec.project_name}-{spec.target_name}-{cluster_id[:6]}",
        provider=spec.provider_name,
        target=spec.target_name,
        project=spec.project_name,
        owner="",
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        tags=spec.tags,
        tasks={task.name: task.component for task in spec.tasks.values()},
        managers={
            spec.target_name: {
                "target": spec.target_name,
                "provider": spec.provider_name,
                "priority": 0,
                "limits": {},
                "scheduler_address": None,
            }
        },
        # The scheduler has the adaptive pools before their manager attaches.
        wanted={tag: own.minimum for tag, own in bounds.pools.items()},
        adaptive={tag: (own.minimum, own.maximum) for tag, own in bounds.pools.items()},
        adaptive_maximum=bounds.maximum,
        expectations=expectations(spec),
        idle_timeout_s=spec.idle_timeout_s,
        time_to_live_s=spec.time_to_live_s,
        manager_grace_s=spec.manager_grace_s or MANAGER_GRACE_S,
        abandoned_after_s=parse_duration(spec.options["abandoned_after"]),
        remote=True,
    )
    texts = (json.dumps(record.to_dict()), encode_spec(spec), "", "{}", secrets.token_urlsafe(24))
    return dict(zip(FILES, (*texts, *credentials), strict=True))


def manager_files(
    files: Mapping[str, str], manager: str, place: Mapping[str, str]
) -> dict[str, str]:
    """Return a separate manager's files by path. ``place`` is the site as the backend uses it."""
    record = dataclasses.replace(record_in(files), place=dict(place))
    own = {MANIFEST: "", SPEC: files[SPEC]}
    return {
        **files,
        RECORD: json.dumps(record.to_dict()),
        **{f"managers/{manager}/{name}": text for name, text in own.items()},
    }
