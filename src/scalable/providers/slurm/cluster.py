"""Embedded cluster with Slurm jobs as workers, for sessions and for use from Python."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scalable.errors import ClusterError, ProviderError
from scalable.manager.pool_cluster import PoolCluster, embedded_site
from scalable.model import ComponentSpec, DeploymentSpec, names
from scalable.providers.slurm.api import PORTS_TRIED, Slurm, address_of, free_port
from scalable.providers.slurm.launcher import Jobs
from scalable.providers.slurm.options import SlurmOptions
from scalable.providers.slurm.traits import TRAITS
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.units import seconds_of

logger = logging.getLogger("scalable.providers.slurm")


class SlurmCluster(PoolCluster):
    """A scheduler in this process, and pools with Slurm jobs as workers.

    Parameters
    ----------
    queue, account, walltime, interface
        Partition, account, time limit of a job (``"04:00:00"``), and network interface of
        scheduler and workers. None for the site's defaults.
    name
        Display name of the cluster.
    log_dir
        Directory for the jobs' logs, on a file system shared by the nodes. By default, logs are
        removed with the cluster.
    workflow_dir
        Directory where relative paths of components start, by default the current one.
    asynchronous
        True if the cluster is used with ``await`` inside a running event loop.
    **options
        The other options of a slurm target: ``qos``, ``constraint``, ``reservation``,
        ``container_runtime``, ``scheduler_port``, ``worker_port_range``, ``directives``.

    Examples
    --------
    >>> cluster = SlurmCluster(queue="batch", walltime="04:00:00")  # doctest: +SKIP
    >>> cluster.add_container(tag="demeter", cpus=10, memory="20G")  # doctest: +SKIP
    >>> cluster.add_workers(n=5, tag="demeter")  # doctest: +SKIP
    """

    _provider_name = "slurm"
    _starting = TRAITS.starting

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
        self.options = _checked(written)
        self.slurm = Slurm()
        self._workflow_dir = Path(workflow_dir or Path.cwd())
        self._log_dir = log_dir or self.options["logs"]
        self._made: Jobs | None = None
        self._directory: Path | None = None
        host = None if interface is None else address_of(interface)
        scheduler: dict[str, Any] = {"dashboard": False, "interface": interface}
        # If another process takes the port before the scheduler does, the next one is tried.
        scheduler["port"] = free_port(host or "", self.options["scheduler_port"])
        scheduler["ports_tried"] = PORTS_TRIED
        super().__init__(
            scheduler={"cls": PoolScheduler, "options": scheduler},
            name=name,
            asynchronous=asynchronous,
        )

    # Components ---------------------------------------------------------------------------------

    def add_container(  # noqa: PLR0913 - written by hand, by keyword
        self,
        tag: str,
        cpus: float = 1,
        memory: str | None = None,
        dirs: Mapping[str, str] | None = None,
        *,
        image: str | None = None,
        env: Mapping[str, str] | None = None,
        preload_script: str | None = None,
        setup: Sequence[str] = (),
        python: str | None = None,
        gpus: int = 0,
        slots: int = 1,
        runtime: str | None = None,
    ) -> None:
        """Add an empty pool.

        Parameters
        ----------
        tag
            Name of the pool, to which tasks are routed.
        cpus, memory, gpus
            Resources of one job. ``memory`` is written as in ``"20G"``.
        dirs
            Paths in the container, by path on the host.
        image
            Container image. None to run the workers on the node itself.
        env, preload_script, setup, python, slots, runtime
            As in a component of a manifest.
        """
        names.TAG.limited(TRAITS.longest_tag).require(tag)
        names.check_variables(env or {}, ClusterError)
        if image is not None:
            names.IMAGE.require(image.removeprefix("docker://"))
        for path in (p for mount in (dirs or {}).items() for p in mount):
            names.PATH.require(path)
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
            setup=tuple(setup),
            python=python,
        )
        self.add_component(component)

    def job_script(self, tag: str) -> str:
        """Return the batch script of a pool's jobs, as passed to ``sbatch``.

        Parameters
        ----------
        tag
            Tag of the pool.

        Raises
        ------
        ClusterError
            If there is no such pool.
        """
        scripts = {} if self._made is None else self._made.scripts()
        if tag not in scripts:
            raise ClusterError(
                f"there is no pool {tag!r}; known pools: {', '.join(scripts) or 'none'}"
            )
        return scripts[tag]

    def add_component(self, component: ComponentSpec, *, task_s: str | float = 0.0) -> None:
        """Add the empty pool of a component.

        Parameters
        ----------
        component
            Resource profile of the workers.
        task_s
            Expected duration of the component's longest task, in seconds or as a string such as
            ``"5 min"``, or 0 to measure it.
        """
        self.add_pools([self._jobs.pool(component, task_s=seconds_of("task_s", task_s))])

    def add_components(self, spec: DeploymentSpec) -> None:
        """Add the pools of a request. They start empty."""
        self.add_pools(self._jobs.pools(spec))

    @property
    def _jobs(self) -> Jobs:
        # Created with the first component, when the scheduler's address is available.
        if self._made is None:
            site = embedded_site(self, Path(self._log_dir) if self._log_dir else None)
            self._directory = site.directory
            self._made = Jobs(self.slurm, site, self.options, self._workflow_dir)
        return self._made

    async def _close(self) -> None:
        await super()._close()
        if self._made is not None:
            try:
                await self._made.launcher.cancel_unanswered()
            except ProviderError as error:
                logger.warning("cluster %s: jobs may be left in the queue: %s", self.name, error)
        directory, self._directory = self._directory, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)

    # Workers ------------------------------------------------------------------------------------

    def add_workers(self, n: int, tag: str) -> None:
        """Request more workers of a tag, as one job array.

        Raises
        ------
        ClusterError
            If there is no such tag.
        ProviderError
            If Slurm refuses the jobs. Nothing is changed.
        """
        before = self._count(n, tag)
        self.scale(tag, before + n)
        try:
            self.submit(tag)
        except BaseException:
            self.scale(tag, before)
            raise

    def submit(self, *tags: str) -> None:
        """Submit the desired jobs, and wait for Slurm's answer.

        Parameters
        ----------
        *tags
            Tags of the pools to check: an error is raised if their jobs are refused.

        Raises
        ------
        ProviderError
            If Slurm refuses their jobs permanently. The message is Slurm's.
        """
        self.align()
        # An earlier pass of the reconciler may have received the refusal.
        for tag in tags:
            reason = self.pools[tag].reason
            if reason is not None:
                raise ProviderError(reason)

    def remove_workers(self, n: int, tag: str) -> None:
        """Remove workers of a tag: queued jobs first, then idle workers, then busy ones.

        Busy workers finish their running tasks and hand over their results.
        """
        before = self._count(n, tag)
        self.scale(tag, max(0, before - n))

    def _count(self, n: int, tag: str) -> int:
        if tag not in self.pools:
            known = ", ".join(repr(t) for t in self.pools) or "none; call add_container first"
            raise ClusterError(f"unknown tag {tag!r}; known tags: {known}")
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ClusterError(
                f"the number of workers is {n!r}; it must be an integer of at least 0"
            )
        return self.pools[tag].wanted

    def job_of(self, worker: str) -> str | None:
        """Return the id of a worker's Slurm job, such as ``12_3``, or None."""
        return None if self._made is None else self._made.launcher.job_of(worker)

    def scripts(self) -> Mapping[str, str]:
        """Map tags to the batch scripts of the pools' jobs."""
        return {} if self._made is None else self._made.scripts()


def _checked(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a slurm target with their defaults, or raise ClusterError."""
    known = SlurmOptions.model_fields
    unknown = next((name for name in written if name not in known), None)
    if unknown is not None:
        near = get_close_matches(unknown, known, 1)
        raise ClusterError(
            f"SlurmCluster has no option {unknown!r}",
            hint=f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}",
        )
    try:
        # Through JSON, because the strict model then accepts lists for tuples.
        return SlurmOptions.model_validate_json(json.dumps(written)).model_dump()
    except ValidationError as error:
        faults = [f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors()]
        raise ClusterError(f"SlurmCluster cannot use {'; '.join(faults)}") from None
