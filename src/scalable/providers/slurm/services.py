"""The scheduler and managers of a cluster as jobs, for targets with ``scheduler: job``."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalable import settings
from scalable.errors import ProviderError
from scalable.providers.slurm.api import Slurm, wait_for
from scalable.providers.slurm.discovery import states
from scalable.providers.slurm.names import comment, service_name
from scalable.providers.slurm.render import JobTemplate, batch_script
from scalable.spec import ComponentSpec

logger = logging.getLogger("scalable.providers.slurm")

#: Memory of a scheduler's or manager's job. A scheduler takes about 10 KiB per task.
MEMORY = "2G"
#: Variables that an enclosing ``scalable run`` or cluster set for this process. Jobs must not
#: inherit them.
OUTER = (
    settings.RUN_TARGET,
    settings.RUN_PLAN,
    settings.RUN_LIST,
    settings.RESUMED,
    settings.CLUSTER,
)


class SlurmServices:
    """Starts the scheduler and managers of a detached cluster as small Slurm jobs."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    def start(self, directory: Path, service: str, program: Sequence[str], log: Path) -> None:
        """Submit the job of a program. Raise ProviderError if Slurm refuses the job."""
        name = service_name(directory.name, service)
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
