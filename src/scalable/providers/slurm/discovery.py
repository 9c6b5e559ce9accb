"""Discovery and deletion of the jobs of detached clusters."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalable import settings
from scalable.errors import ProviderError
from scalable.model import ComponentSpec
from scalable.providers.slurm.api import Slurm, wait_for
from scalable.providers.slurm.queue import (
    Element,
    JobState,
    cluster_of,
    comment,
    kind_of,
    said_by,
    service_name,
)
from scalable.providers.slurm.render import JobTemplate, batch_script
from scalable.records import ClusterDirectory
from scalable.records.directory import RECORD

logger = logging.getLogger("scalable.providers.slurm")

#: Longest wait for Slurm when clusters are listed, in seconds.
DISCOVER_TIMEOUT_S = 4.0
DELETE_TIMEOUT_S = 90.0
BACKOFF = 1.5
#: Message of Slurm's commands on a machine that is not part of a Slurm cluster.
NOT_CONFIGURED = "Could not establish a configuration source"


def discover() -> list[dict[str, Any]]:
    """Return a row for each cluster of this user's state directory with a job in the queue.
    The list is empty without Slurm. Raise ProviderError if a configured Slurm does not answer.
    """
    if shutil.which("squeue") is None:
        return []
    rows: dict[str, Counter[str]] = {}
    try:
        queue = wait_for(Slurm(DISCOVER_TIMEOUT_S).queue())
    except ProviderError as error:
        if NOT_CONFIGURED in error.message:
            return []  # Slurm's commands are installed, but not configured
        raise
    for element in queue:
        cluster_id = cluster_of(element.name)
        if cluster_id is None or element.state is JobState.ENDED:
            continue
        # Jobs of another state directory belong to a manager that this process cannot find.
        directory = Path(str(said_by(element).get("directory", "")))
        if directory.is_relative_to(settings.state_dir() / "clusters" / cluster_id):
            rows.setdefault(cluster_id, Counter())[element.name] += 1
    return [
        {
            "id": cluster_id,
            "provider": "slurm",
            "what": ", ".join(map(_job_count, counts.items())),
        }
        for cluster_id, counts in rows.items()
    ]


def _job_count(counted: tuple[str, int]) -> str:
    name, count = counted
    return f"job {name}" if count == 1 else f"{count} jobs {name}"


def states(cluster_id: str) -> dict[str, str]:
    """Map a cluster's programs that run as jobs to ``pending`` or ``running``."""
    words = {JobState.WAITING: "pending", JobState.THERE: "running"}
    found = wait_for(_alive(Slurm(), cluster_id))
    kinds = ((said_by(e).get("service") or kind_of(e.name), e) for e in found)
    return {kind: words[element.state] for kind, element in kinds if kind is not None}


def delete(cluster_id: str) -> list[str]:
    """Cancel a cluster's jobs except the calling one, wait, and return their descriptions.
    Raise ProviderError if Slurm does not answer, or if jobs have not stopped within 90 s.
    """
    return wait_for(_delete(Slurm(), cluster_id))


async def _delete(slurm: Slurm, cluster_id: str) -> list[str]:
    deadline, pause = time.monotonic() + DELETE_TIMEOUT_S, 0.2
    cancelled: dict[int, str] = {}
    while True:
        try:
            found = [e for e in await _alive(slurm, cluster_id) if not _is_ours(e)]
            # Cancelling the id of an array cancels all of its elements.
            fresh = {e.job: f"job {e.job} ({e.name})" for e in found if e.job not in cancelled}
            if fresh:
                logger.debug("cluster %s: cancelling %s", cluster_id, list(fresh.values()))
                await slurm.cancel([str(job) for job in fresh])
                cancelled |= fresh
            if not found:
                return list(cancelled.values())
        except ProviderError as error:
            if not error.transient or time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            shown = ", ".join(cancelled.values())
            raise ProviderError(
                f"jobs of cluster {cluster_id} were cancelled but have not stopped after "
                f"{DELETE_TIMEOUT_S:g} s: {shown}",
                hint="check them with squeue: a node may not be responding",
            )
        await asyncio.sleep(pause)
        pause = min(5.0, pause * BACKOFF)


async def _alive(slurm: Slurm, cluster_id: str) -> Sequence[Element]:
    queue = await slurm.queue()
    return [e for e in queue if e.state is not JobState.ENDED and cluster_of(e.name) == cluster_id]


def _is_ours(element: Element) -> bool:
    """Return whether this process runs in the job, since a scheduler may delete its own cluster."""
    return kind_of(element.name) is not None and os.environ.get("SLURM_JOB_ID") == f"{element.job}"


# Services -----------------------------------------------------------------------------------------

#: Memory of a scheduler's or manager's job. A scheduler takes about 10 KiB per task.
MEMORY = "2G"
#: Variables that an enclosing ``scalable run`` or cluster set for this process. Jobs must not
#: inherit them.
OUTER = (
    settings.RUN_TARGET,
    settings.RUN_PLAN,
    settings.RUN_LIST,
    settings.RESUMED,
    settings.RESUMED_DESPITE_CODE,
    settings.CLUSTER,
)


class SlurmServices:
    """Starts the scheduler and managers of a detached cluster as small Slurm jobs."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    def start(self, directory: Path, service: str, program: Sequence[str], log: Path) -> None:
        """Submit a program's job, or raise ProviderError if Slurm refuses it."""
        recorded = (directory / RECORD).exists()
        title = ClusterDirectory(directory).record().name if recorded else ""
        name = service_name(directory.name, service, title)
        command = f"unset {' '.join(OUTER)}\nexec {shlex.join(program)}"
        template = JobTemplate(
            name,
            ComponentSpec(service, cpus=1, memory=MEMORY),
            self._options,
            log=str(log).replace("%", "%%"),
            command=command,
        )
        said = comment(name, directory, service=service)
        try:
            job = wait_for(Slurm().submit(batch_script(template), array=None, comment=said))
            logger.debug("job %d: submitted as %s", job, name)
        except ProviderError as error:
            # Slurm may have accepted the job although its answer was lost.
            if not error.transient or service not in self.state(directory.name):
                raise

    def state(self, cluster_id: str) -> dict[str, str]:
        """Map ``scheduler`` and manager ids in the queue to ``pending`` or ``running``."""
        return states(cluster_id)
