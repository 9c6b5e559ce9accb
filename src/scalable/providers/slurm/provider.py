"""What the slurm provider decides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalable import settings
from scalable.providers.base import DeploymentSpec, Diagnostic, ScalePlan, ValidationReport
from scalable.providers.slurm.options import SlurmOptions
from scalable.providers.slurm.render import batch_script
from scalable.providers.slurm.worker import file_name, job_template
from scalable.units import parse_walltime

if TYPE_CHECKING:
    from scalable.providers.slurm.cluster import SlurmCluster


class SlurmProvider:
    """Runs each worker as a Slurm job, and the scheduler in the user's process."""

    name = "slurm"
    options_model = SlurmOptions

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Check what needs no Slurm: expected durations against the walltime."""
        report = ValidationReport()
        walltime = spec.options.get("walltime")
        if walltime is None:
            return report
        for task in spec.tasks.values():
            if task.duration_s is not None and task.duration_s > parse_walltime(str(walltime)):
                report.add(
                    Diagnostic(
                        "E_BAD_OPTION",
                        ("tasks", task.name, "duration"),
                        f"a call is expected to take longer than the walltime {walltime}",
                        hint="raise the walltime of the target, or split the task",
                    )
                )
        return report

    def check(self, spec: DeploymentSpec) -> ValidationReport:
        """Compare the request with the live Slurm: partition, limits, nodes, interface, mounts.

        Nothing is submitted: in the end Slurm is asked whether it would accept each script.

        Raises
        ------
        ProviderError
            When Slurm does not answer.
        """
        from scalable.providers.slurm.live import check

        return check(spec, self.render_scripts(spec))

    def render_scripts(self, spec: DeploymentSpec) -> dict[str, str]:
        """Tag -> batch script of its jobs, with ``ID`` in place of the cluster's id."""
        directory = settings.state_dir() / "clusters" / "ID"
        logs = spec.options["logs"] or spec.log_dir or directory / "logs"
        return {
            tag: batch_script(
                job_template(
                    component,
                    spec.options,
                    cluster_id="ID",
                    config=directory / f"{file_name(tag)}.json",
                    logs=Path(logs).absolute(),
                    directory=None if spec.workflow_dir is None else Path(spec.workflow_dir),
                )
            )
            for tag, component in spec.components.items()
        }

    def build_cluster(self, spec: DeploymentSpec) -> SlurmCluster:
        """Start a scheduler in this process; its pools are empty."""
        options = dict(spec.options)
        if options["scheduler"] == "job":
            raise NotImplementedError(
                f"target {spec.target_name!r}: scheduler: job is not available in this version; "
                "write scheduler: login"
            )
        from scalable.providers.slurm.cluster import SlurmCluster

        slug = re.sub(r"[^\w-]+", "-", spec.project_name).strip("-") or "cluster"
        cluster = SlurmCluster(
            name=slug,
            log_dir=options["logs"] or spec.log_dir,
            workflow_dir=spec.workflow_dir,
            **{key: value for key, value in options.items() if key != "n_workers"},
        )
        try:
            for tag, component in spec.components.items():
                durations = [
                    task.duration_s or 0.0 for task in spec.tasks.values() if task.component == tag
                ]
                cluster.add_component(component, task_s=max(durations, default=0.0))
        except BaseException:
            cluster.close()
            raise
        return cluster

    def scale(self, cluster: Any, plan: ScalePlan) -> None:
        """Submit or give back jobs until the pools are as large as the plan says.

        Raises
        ------
        ProviderError
            When Slurm refuses the jobs for good, in its own words.
        """
        cluster.scale(dict(plan.workers_by_tag))
        cluster.align()

    def close(self, cluster: Any) -> None:
        """Cancel every job and end the scheduler."""
        cluster.close()
