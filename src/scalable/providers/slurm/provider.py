"""The slurm provider."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalable import settings
from scalable.providers.base import Diagnostic, OptionsModel, ValidationReport
from scalable.providers.slurm.traits import TRAITS

if TYPE_CHECKING:
    from scalable.manager.pools import ManagerSite, Pool
    from scalable.providers.base import DeploymentSpec, ScalePlan
    from scalable.providers.slurm.cluster import SlurmCluster
    from scalable.providers.slurm.discovery import SlurmServices
    from scalable.providers.slurm.worker import JobRequest


class SlurmProvider:
    """Provider with Slurm jobs as workers.

    The scheduler runs in the user's process unless the cluster is detached.
    """

    name = "slurm"
    options_model = OptionsModel("scalable.providers.slurm.options", "SlurmOptions")
    traits = TRAITS

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Compare the expected durations of tasks with the walltime, without contacting Slurm."""
        report = ValidationReport()
        if spec.walltime_s is None:
            return report
        walltime = spec.options["walltime"]
        for task in spec.tasks.values():
            if task.duration_s is not None and task.duration_s > spec.walltime_s:
                report.add(
                    Diagnostic(
                        "E_BAD_OPTION",
                        ("tasks", task.name, "duration"),
                        f"a task is expected to take longer than the walltime {walltime}",
                        hint="raise the walltime of the target, or split the task",
                    )
                )
        return report

    def check(self, spec: DeploymentSpec) -> ValidationReport:
        """Compare the request with the live Slurm: partition, limits, nodes, interface, mounts.

        Nothing is submitted: each script is passed to ``sbatch --test-only``. Images are started
        once here, if this machine has their container runtime.

        Raises
        ------
        ProviderError
            If Slurm does not answer.
        """
        from scalable.providers.slurm.check import check

        return check(spec, self.render_scripts(spec), self._requests(spec))

    def render_scripts(self, spec: DeploymentSpec) -> dict[str, str]:
        """Map tags to batch scripts of the pools' jobs, with ``ID`` for the cluster's id."""
        from scalable.providers.slurm.render import batch_script
        from scalable.providers.slurm.worker import job_template

        directory = settings.state_dir() / "clusters" / "ID"
        logs = Path(spec.options["logs"] or spec.log_dir or directory / "logs").absolute()
        return {
            tag: batch_script(job_template(request, prefix=f"{tag}-ID-", logs=logs))
            for tag, request in self._requests(spec).items()
        }

    def _requests(self, spec: DeploymentSpec) -> dict[str, JobRequest]:
        """Map tags to job requests, for scripts that are not submitted."""
        from scalable.manager.pools import config_path
        from scalable.protocol.code import search_path
        from scalable.providers.slurm.queue import pool_name
        from scalable.providers.slurm.worker import JobRequest

        directory = settings.state_dir() / "clusters" / "ID"
        return {
            tag: JobRequest(
                component,
                spec.options,
                name=pool_name("ID", spec.target_name, tag, spec.project_name),
                config=config_path(directory, tag),
                directory=_directory(spec),
                script_dir=search_path()[0],
                starts=False,
            )
            for tag, component in spec.components.items()
        }

    def build_cluster(self, spec: DeploymentSpec) -> SlurmCluster:
        """Start a scheduler in this process. Its pools are empty."""
        from scalable.providers.slurm.cluster import SlurmCluster

        options = dict(spec.options)
        slug = re.sub(r"[^\w-]+", "-", spec.project_name).strip("-") or "cluster"
        cluster = SlurmCluster(
            name=slug,
            log_dir=options["logs"] or spec.log_dir,
            workflow_dir=spec.workflow_dir,
            **{key: value for key, value in options.items() if key != "n_workers"},
        )
        try:
            cluster.add_components(spec)
        except BaseException:
            cluster.close()
            raise
        return cluster

    def pools(self, spec: DeploymentSpec, site: ManagerSite) -> list[Pool]:
        """Return the empty pools of a manager. Their workers are Slurm jobs.

        Raises
        ------
        ProviderError
            If a component's container cannot be started.
        """
        from scalable.providers.slurm.api import Slurm
        from scalable.providers.slurm.launcher import Jobs

        return Jobs(Slurm(), site, spec.options, _directory(spec)).pools(spec)

    def discover(self) -> list[dict[str, Any]]:
        """Return the clusters that have jobs in the queue. There are none without Slurm."""
        from scalable.providers.slurm.discovery import discover

        return discover()

    def delete(self, cluster_id: str) -> list[str]:
        """Cancel all jobs of a cluster, if any, and wait until they have stopped."""
        from scalable.providers.slurm.discovery import delete

        return delete(cluster_id)

    def services(self, spec: DeploymentSpec | None = None) -> SlurmServices:
        """Return an object that starts a cluster's scheduler and managers as Slurm jobs.

        Parameters
        ----------
        spec
            Request with the target to submit to, or None if only the states of jobs are needed.
        """
        from scalable.providers.slurm.discovery import SlurmServices

        return SlurmServices({} if spec is None else spec.options)

    def scale(self, cluster: Any, plan: ScalePlan) -> None:
        """Submit or cancel jobs until the pools have the sizes of the plan.

        Raises
        ------
        ProviderError
            If Slurm refuses the jobs permanently. The message is Slurm's.
        """
        cluster.scale(dict(plan.workers_by_tag))
        cluster.submit(*plan.workers_by_tag)

    def close(self, cluster: Any) -> None:
        """Cancel every job and stop the scheduler."""
        cluster.close()


def _directory(spec: DeploymentSpec) -> Path:
    """Return the directory where the manifest's relative paths start."""
    return Path.cwd() if spec.workflow_dir is None else Path(spec.workflow_dir)
