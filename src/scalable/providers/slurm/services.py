"""A cluster's scheduler and managers as jobs, for targets with ``scheduler: job``."""

from __future__ import annotations

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

#: A scheduler takes about 10 KiB for each task that it knows.
MEMORY = "2G"
#: What an outer ``scalable run`` or cluster told this process is not meant for them.
OUTER = (settings.RUN_TARGET, settings.RUN_LIST, settings.CLUSTER)


class SlurmServices:
    """Runs the programs of a detached cluster as small jobs of their own.

    Parameters
    ----------
    options
        Options of the target; only for starting.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    def start(self, directory: Path, service: str, program: Sequence[str], log: Path) -> None:
        """Submit the job of a program, unless it is in the queue already.

        Parameters
        ----------
        directory
            Of the cluster; its name is the cluster's UUID.
        service
            ``scheduler``, or the id of a manager.
        program
            Its command line.
        log
            Where its output goes.

        Raises
        ------
        ProviderError
            When Slurm refuses it.
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
            wait_for(Slurm().submit(batch_script(template), array=None, comment=said))
        except ProviderError as error:
            # The answer alone may be what is missing.
            if not error.transient or service not in self.state(directory.name):
                raise

    def state(self, cluster_id: str) -> dict[str, str]:
        """Which programs are there: ``scheduler`` or the id of a manager -> how they are.

        Parameters
        ----------
        cluster_id
            UUID of the cluster.

        Returns
        -------
        dict
            ``pending`` or ``running``; those that are gone are left out.

        Raises
        ------
        ProviderError
            When Slurm does not answer.
        """
        return states(cluster_id)
