"""Records of a new cluster and of its run. This module does not import Dask."""

from __future__ import annotations

import logging
import os
import pwd
import re
import signal
import time
import traceback
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from scalable import settings
from scalable.errors import ClusterError
from scalable.liveness import identify_process
from scalable.model import ClusterRecord, DeploymentSpec, Plan, names
from scalable.planning import adaptive_bounds, expectations, total_limit
from scalable.records import ClusterDirectory
from scalable.runs.directory import RunDirectory
from scalable.storage import size_of, without_secrets

# Clusters -----------------------------------------------------------------------------------------


logger = logging.getLogger("scalable.clusters")


def default_name(spec: DeploymentSpec) -> str:
    """Return the default name of a cluster: ``project-target``."""
    project, target = (_slug(name) for name in (spec.project_name, spec.target_name))
    # The project is cut, not the target: names differ between the targets of a project.
    project = project[: names.CLUSTER.longest - len(target) - 1]
    return _slug(f"{project}-{target}") or "cluster"


def _written(spec: DeploymentSpec, option: str, limit: int) -> int:
    """Return the limit as the manifest has it: plans may exceed ``at_most`` by fixed counts."""
    value = spec.options.get(option, limit)
    return value if isinstance(value, int) else limit


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).lstrip("-._").rstrip("-.")


def _user() -> str:
    """Return the name of the process's user, or the uid if there is no name."""
    uid = os.geteuid()  # not USER, which sudo and su may leave as another user's
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def cluster_record(spec: DeploymentSpec, plan: Plan) -> ClusterRecord:
    """Return the record of a new cluster, with the fields common to all kinds of clusters."""
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
        max_workers=None if most is None else _written(spec, *most),
        limited_by="max_workers" if most is None else most[0],
        adaptive={tag: (own.minimum, own.maximum) for tag, own in bounds.pools.items()},
        adaptive_maximum=bounds.maximum,
        expectations=expectations(spec, plan),
        objective=plan.objective,
        policy=plan.policy,
    )


def put_on_record(record: ClusterRecord) -> ClusterDirectory | None:
    """Record this process's cluster so that it is listed. Return None on failure."""
    try:
        return ClusterDirectory.create(record)
    except (OSError, ClusterError) as error:
        logger.warning("this cluster will not be listed: %s", error)
        return None


_INTERRUPTED = 128 + signal.SIGINT
#: Exit codes after a signal with which users stop a process.
_STOPPED = (_INTERRUPTED, 128 + signal.SIGTERM, 128 + signal.SIGHUP)


class SessionRecord:
    """The run directory into which a session writes its record."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run

    @classmethod
    def open(cls, spec: DeploymentSpec, plan: Plan, *, manifest_yaml: str) -> Self:
        """Create a run directory, reported to an enclosing ``scalable run``. May raise RunError."""
        run = RunDirectory.create(
            spec.project_name,
            spec.target_name,
            manifest_yaml=manifest_yaml,
            manifest_lock=plan.manifest_lock,
            plan=plan.to_dict(),
            provider=spec.provider_name,
        )
        announce_run(run.path)
        return cls(run)

    def artifact(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None,
        kind: str,
        metadata: Mapping[str, Any],
    ) -> None:
        """Record an artifact of the workflow: a file or a URL."""
        text = os.fspath(path)
        file = None if "://" in text else Path(text).resolve()
        if file is None:
            shown, size = without_secrets(text), size_of(text)
        else:
            shown, size = str(file), file.stat().st_size if file.is_file() else None
        row = {
            "name": name or shown.partition("?")[0].rstrip("/").rsplit("/", 1)[-1],
            "path" if file else "uri": shown,
            "kind": kind,
            "timestamp": time.time(),
            "bytes": size,
            "metadata": dict(metadata),
        }
        self.run.append("artifacts", row)

    def close(self, error: BaseException | None) -> None:
        """Close the run as completed, cancelled or failed, depending on the error."""
        code = error.code if isinstance(error, SystemExit) else 1
        if error is None or code in (None, 0):
            self.run.close("completed")
        elif isinstance(error, KeyboardInterrupt):
            self.run.close("cancelled", exit_code=_INTERRUPTED)
        elif isinstance(code, int) and code in _STOPPED:
            self.run.close("cancelled", exit_code=code)
        else:
            self.run.append("failures", _workflow_failure(error))
            self.run.close(
                "failed",
                error=f"{type(error).__name__}: {_error_message(error)}",
                exit_code=code if isinstance(code, int) else 1,
            )


def announce_run(path: Path | None) -> None:
    """Report a run's path to the ``scalable run`` that started this process, if any."""
    listing = os.environ.get(settings.RUN_LIST)
    if listing and path is not None:
        # That process may have exited by now. Then the list is gone.
        with suppress(FileNotFoundError), Path(listing).open("a", encoding="utf-8") as file:
            file.write(f"{path}\n")


def _error_message(error: BaseException) -> str:
    """Return the message of an error, even if its ``__str__`` fails."""
    lines = traceback.format_exception_only(error)
    own = next((line for line in lines if type(error).__name__ in line), lines[-1])
    return own.strip().partition(": ")[2]


def _workflow_failure(error: BaseException) -> dict[str, Any]:
    return {
        "failure_class": type(error).__name__,
        "message": _error_message(error),
        "timestamp": time.time(),
        "details": {
            "phase": "workflow",
            "task_id": None,
            "worker": None,
            "traceback": "".join(traceback.format_exception(error)),
        },
    }
