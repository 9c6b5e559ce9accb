"""The cluster whose workers are Slurm jobs, for sessions and for people who live in Python."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scalable import settings
from scalable.cluster.pool_cluster import PoolCluster
from scalable.cluster.scheduler import PoolScheduler
from scalable.cluster.worker import ProcessWorker
from scalable.cluster.worker_process import WorkerConfig, security_fields, serialized_config
from scalable.containers import prove
from scalable.errors import ClusterError, ProviderError
from scalable.manifest.fields import parse_port_range
from scalable.providers.slurm.api import Slurm
from scalable.providers.slurm.launcher import JobPool, SlurmLauncher
from scalable.providers.slurm.network import address_of, free_port
from scalable.providers.slurm.options import SlurmOptions
from scalable.providers.slurm.render import batch_script
from scalable.providers.slurm.worker import container_of, file_name, job_template
from scalable.spec import ComponentSpec
from scalable.units import parse_bytes, parse_walltime

logger = logging.getLogger("scalable.providers.slurm")


class SlurmCluster(PoolCluster):
    """A scheduler in this process, and pools of workers that are Slurm jobs.

    Parameters
    ----------
    queue, account, walltime, interface
        Partition, account, time limit of a job (``"04:00:00"``), and the network interface that
        scheduler and workers use; all may be left to the site's defaults.
    name
        Shown to people.
    log_dir
        Directory for the logs of jobs, on a file system that the nodes share; by default they are
        kept only while the cluster lives.
    workflow_dir
        Where relative paths of components start; by default the current directory.
    asynchronous
        Whether it is used with ``await`` inside a running event loop.
    **options
        The other options of a slurm target: ``qos``, ``constraint``, ``reservation``,
        ``container_runtime``, ``scheduler_port``, ``worker_port_range``, ``directives``.

    Examples
    --------
    >>> cluster = SlurmCluster(queue="batch", walltime="04:00:00")  # doctest: +SKIP
    >>> cluster.add_container(tag="demeter", cpus=10, memory="20G")  # doctest: +SKIP
    >>> cluster.add_workers(n=5, tag="demeter")  # doctest: +SKIP
    """

    def __init__(
        self,
        queue: str | None = None,
        account: str | None = None,
        walltime: str | None = None,
        interface: str | None = None,
        *,
        name: str | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        workflow_dir: str | os.PathLike[str] | None = None,
        asynchronous: bool = False,
        **options: Any,
    ) -> None:
        named = {"queue": queue, "account": account, "walltime": walltime, "interface": interface}
        written = {key: value for key, value in (named | options).items() if value is not None}
        # As JSON, because the strict model then takes lists for tuples.
        self.options = SlurmOptions.model_validate_json(json.dumps(written)).model_dump()
        self.slurm = Slurm()
        self._job_pools: dict[str, JobPool] = {}
        self._launcher = SlurmLauncher(self.slurm, self._job_pools)
        self._workflow_dir = Path(workflow_dir or Path.cwd())
        self._log_dir = log_dir or self.options["logs"]
        self._directory: Path | None = None
        host = None if interface is None else address_of(interface)
        scheduler: dict[str, Any] = {"dashboard": False, "interface": interface}
        scheduler["port"] = free_port(host or "", self.options["scheduler_port"])
        super().__init__(
            scheduler={"cls": PoolScheduler, "options": scheduler},
            name=name,
            asynchronous=asynchronous,
        )

    # Components ---------------------------------------------------------------------------------

    def add_container(  # noqa: PLR0913 - what people write by hand, by keyword
        self,
        tag: str,
        cpus: float = 1,
        memory: str | None = None,
        dirs: Mapping[str, str] | None = None,
        *,
        image: str | None = None,
        env: Mapping[str, str] | None = None,
        preload_script: str | None = None,
        gpus: int = 0,
        slots: int = 1,
        runtime: str | None = None,
    ) -> None:
        """Describe the workers of a tag; none is started.

        Parameters
        ----------
        tag
            What calls are routed by.
        cpus, memory, gpus
            What a job asks for; ``memory`` as in ``"20G"``.
        dirs
            Path on the host -> path in the container.
        image
            Container image; without one the workers run on the node itself.
        env, preload_script, slots, runtime
            As in a component of a manifest.
        """
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", tag):
            raise ClusterError(
                f"{tag!r} is no tag: letters, digits, '_', '-' and '.' make the names of its jobs"
            )
        odd = [name for name in env or () if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]
        if odd:
            raise ClusterError(f"{odd[0]!r} is no name of an environment variable")
        component = ComponentSpec(
            tag,
            image=image,
            runtime=runtime,
            cpus=cpus,
            memory=memory,
            gpus=gpus,
            slots=slots,
            mounts=dict(dirs or {}),
            env=dict(env or {}),
            preload_script=preload_script,
        )
        self.add_component(component)

    def add_component(self, component: ComponentSpec, *, task_s: float = 0.0) -> None:
        """Make the pool of a component known; it starts empty.

        Parameters
        ----------
        component
            Its resource profile.
        task_s
            Expected running time of its longest call in seconds; 0 to go by what ran.
        """
        tag = component.name
        walltime = self.options["walltime"]
        config = self._config_path(tag)
        container = container_of(component, self.options, config, tag, self._workflow_dir)
        if container is not None and shutil.which(container.runtime):
            prove(container)  # before a hundred jobs find out; elsewhere only the nodes can
        template = job_template(
            component,
            self.options,
            cluster_id=self.incarnation,
            config=config,
            logs=self._logs(),
            directory=self._workflow_dir,
        )
        pattern = template.log
        self._job_pools[tag] = JobPool(
            name=template.name,
            prefix=template.prefix,
            script=lambda first: batch_script(template, first),
            log=lambda job, index: pattern.replace("%A", str(job)).replace(
                "%a", "4294967294" if index is None else str(index)
            ),
        )
        self._write_config(component)
        self.add_pool(
            tag,
            {"cls": ProcessWorker, "options": {}},
            slots=component.slots,
            launcher=self._launcher,
            walltime_s=None if walltime is None else parse_walltime(str(walltime)),
            task_s=task_s,
        )

    def _write_config(self, component: ComponentSpec) -> None:
        config = WorkerConfig(
            scheduler=self.scheduler.contact_address or self.scheduler.address,
            name="",
            nthreads=component.slots,
            resources={component.name: component.slots},
            memory_limit=0 if component.memory is None else parse_bytes(component.memory),
            host="",
            interface=self.options["interface"] or "",
            ports=_ports(self.options["worker_port_range"]),
            hand_over=True,
            sys_path=_search_path(component),
            security=security_fields(self.security),
            dask_config=serialized_config(),
        )
        path = self._config_path(component.name)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(config), file)

    # Files --------------------------------------------------------------------------------------

    def _private_directory(self) -> Path:
        """Directory on the shared file system that only its owner may enter."""
        if self._directory is None:
            directory = settings.state_dir() / "clusters" / self.incarnation
            directory.mkdir(parents=True, mode=0o700)
            self._directory = directory
        return self._directory

    def _config_path(self, tag: str) -> Path:
        return self._private_directory() / f"{file_name(tag)}.json"

    def _logs(self) -> Path:
        logs = Path(self._log_dir) if self._log_dir else self._private_directory() / "logs"
        if "%" in str(logs) or "\n" in str(logs):
            raise ClusterError(
                f"{str(logs)!r} cannot hold logs: Slurm would read its '%' as a pattern"
            )
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        return logs.absolute()

    async def _close(self) -> None:
        await super()._close()
        try:
            await self._launcher.cancel_unanswered()
        except ProviderError as error:
            logger.warning("jobs may be left in the queue: %s", error)
        directory, self._directory = self._directory, None
        if directory is not None:
            with suppress(FileNotFoundError):
                shutil.rmtree(directory)

    # Workers ------------------------------------------------------------------------------------

    def add_workers(self, n: int, tag: str) -> None:
        """Ask for more workers of a tag; one job array for all of them.

        Raises
        ------
        ClusterError
            When there is no such tag.
        ProviderError
            When Slurm refuses the jobs; nothing changes then.
        """
        before = self._count(n, tag)
        self.scale(tag, before + n)
        try:
            self.align()
        except BaseException:
            self.scale(tag, before)
            raise

    def remove_workers(self, n: int, tag: str) -> None:
        """Give workers of a tag back: those that wait first, then idle ones, then busy ones.

        Busy ones finish what runs, and hand over their results.
        """
        before = self._count(n, tag)
        self.scale(tag, max(0, before - n))

    def _count(self, n: int, tag: str) -> int:
        if tag not in self.pools:
            known = ", ".join(repr(t) for t in self.pools) or "none; call add_container first"
            raise ClusterError(f"unknown tag {tag!r}; known tags: {known}")
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ClusterError(f"{n!r} is no number of workers")
        return self.pools[tag].wanted

    def job_of(self, worker: str) -> str | None:
        """Id of the job element that a worker is, such as ``12_3``; None where it has none."""
        return self._launcher.job_of(worker)

    def scripts(self) -> Mapping[str, str]:
        """Tag -> the batch script of its jobs."""
        return {tag: pool.script(0) for tag, pool in self._job_pools.items()}


def _ports(written: str | None) -> str:
    """A range of ports as Dask takes it."""
    return "" if written is None else "{}:{}".format(*parse_port_range(written))


def _search_path(component: ComponentSpec) -> tuple[str, ...]:
    """Where workers look for modules; an image without our Python sees the workflow's alone."""
    entries = tuple(entry or str(Path.cwd()) for entry in sys.path)
    return entries if component.image is None or component.runtime == "host" else entries[:1]
