"""Pools whose workers are Slurm jobs: launcher, configuration files and job templates."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scalable.containers import prove
from scalable.errors import ClusterError
from scalable.files import private_directory, write_private
from scalable.liveness import identify_process
from scalable.manager.pools import Pool
from scalable.manager.site import ManagerSite, config_path
from scalable.providers.slurm.api import Slurm
from scalable.providers.slurm.launcher import JobPool, SlurmLauncher
from scalable.providers.slurm.names import pool_name
from scalable.providers.slurm.render import batch_script
from scalable.providers.slurm.worker import JobRequest, container_of, job_template
from scalable.records.directory import OWNER
from scalable.spec import ComponentSpec, DeploymentSpec
from scalable.spec.deployment import walltime_of
from scalable.units import parse_port_range
from scalable.worker.config import WorkerConfig, security_fields, serialized_config
from scalable.worker.process_worker import ProcessWorker

logger = logging.getLogger("scalable.providers.slurm")


class Jobs:
    """The pools of one manager whose workers are Slurm jobs, with one launcher for all of them.
    The site's directory has to be on a file system that the nodes share.
    """

    def __init__(
        self, slurm: Slurm, site: ManagerSite, options: Mapping[str, Any], workflow_dir: Path
    ) -> None:
        self._site = site
        self._options = options
        self._workflow_dir = workflow_dir
        self._pools: dict[str, JobPool] = {}
        self.launcher = SlurmLauncher(slurm, self._pools, site.directory)

    def pools(self, spec: DeploymentSpec) -> list[Pool]:
        """Return the empty pools of a request. Raise ProviderError if a container cannot start."""
        made = []
        for tag, component in spec.components.items():
            lengths = [t.duration_s or 0.0 for t in spec.tasks.values() if t.component == tag]
            made.append(self.pool(component, task_s=max(lengths, default=0.0)))
        return made

    def pool(self, component: ComponentSpec, *, task_s: float = 0.0) -> Pool:
        """Return the pool of a component, and write the configuration file of its workers.
        ``task_s`` is the expected duration of the longest task in seconds, or 0 to measure it.
        """
        site, tag, logs = self._site, component.name, self._logs()
        request = JobRequest(
            component,
            self._options,
            name=pool_name(site.cluster_id, site.manager, tag),
            config=config_path(site.directory, tag),
            directory=self._workflow_dir,
            script_dir=next(iter(site.sys_path), ""),
        )
        container = container_of(request)
        if container is not None and shutil.which(container.runtime):
            # A trial start reports an error before every job fails. If this machine lacks the
            # runtime, only the nodes can start the container.
            logger.debug("pool %r: starting its container once", tag)
            private_directory(request.config.parent)  # the container mounts it
            prove(container)
        template = job_template(request, prefix=f"{tag}-{site.incarnation}-", logs=logs)
        self._pools[tag] = JobPool(
            name=template.name,
            prefix=template.prefix,
            script=lambda first: batch_script(template, first),
            log=lambda job, index: template.log.replace("%A", str(job)).replace(
                "%a", "4294967294" if index is None else str(index)
            ),
        )
        private_directory(request.config.parent)
        write_private(request.config, json.dumps(asdict(self._config(component))))
        return Pool(
            tag,
            self.launcher,
            {"cls": ProcessWorker, "options": {}},
            component.slots,
            walltime_s=walltime_of(self._options),
            task_s=task_s,
            shape={"cpus": component.cpus, "memory": component.memory, "gpus": component.gpus},
        )

    def _config(self, component: ComponentSpec) -> WorkerConfig:
        site = self._site
        # An image with its own Python has its own modules. From this machine it gets only the
        # workflow's directory.
        alone = component.image is not None and component.runtime != "host"
        return WorkerConfig(
            scheduler=site.scheduler,
            name="",
            nthreads=component.slots,
            resources={component.name: component.slots},
            memory_limit=component.memory_bytes or 0,
            host="",
            interface=self._options["interface"] or "",
            ports=_ports(self._options["worker_port_range"]),
            hand_over=True,
            sys_path=site.sys_path[:1] if alone else site.sys_path,
            security=security_fields(site.security),
            manager=site.manager,
            clear_away="" if site.detached else str(site.directory),
            dask_config=serialized_config(),
        )

    def _logs(self) -> Path:
        private_directory(self._site.directory)
        if not self._site.detached:  # an embedded cluster has no record that names the owner
            owner = json.dumps(identify_process())
            write_private(self._site.directory / OWNER, owner)
        logs = self._site.log_dir or self._site.directory / "logs"
        if "%" in str(logs) or "\n" in str(logs):
            raise ClusterError(
                f"the log directory {str(logs)!r} contains '%' or a line break, which "
                "Slurm does not take literally",
                hint="choose another directory with the target's logs option",
            )
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        return logs.absolute()

    def scripts(self) -> dict[str, str]:
        return {tag: pool.script(0) for tag, pool in self._pools.items()}


def _ports(written: str | None) -> str:
    """Return a port range in Dask's notation."""
    return "" if written is None else "{}:{}".format(*parse_port_range(written))
