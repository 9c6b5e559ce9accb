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

#: Memory of the job of a scheduler or manager; a scheduler takes about 10 KiB for each task.
MEMORY = "2G"
#: Variables that an enclosing ``scalable run`` or cluster set for this process; jobs must not
#: inherit them.
OUTER = (
    settings.RUN_TARGET,
    settings.RUN_PLAN,
    settings.RUN_LIST,
    settings.RESUMED,
    settings.CLUSTER,
)


class SlurmServices:
    """Starts the scheduler and managers of a detached cluster as small Slurm jobs.

    Parameters
    ----------
    options
        Options of the target; only needed by :meth:`start`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    def start(self, directory: Path, service: str, program: Sequence[str], log: Path) -> None:
        """Submit the job of a program.

        Parameters
        ----------
        directory
            Directory of the cluster; its name is the cluster's UUID.
        service
            ``scheduler``, or the id of a manager.
        program
            Command line of the program.
        log
            File for its output.

        Raises
        ------
        ProviderError
            When Slurm refuses the job.
        """
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
            # Slurm may have taken the job although its answer was lost.
            if not error.transient or service not in self.state(directory.name):
                raise

    def state(self, cluster_id: str) -> dict[str, str]:
        """Return the states of a cluster's scheduler and managers that are in the queue.

        Parameters
        ----------
        cluster_id
            UUID of the cluster.

        Returns
        -------
        dict
            ``scheduler``, or the id of a manager -> ``pending`` or ``running``.

        Raises
        ------
        ProviderError
            When Slurm does not answer.
        """
        return states(cluster_id)
