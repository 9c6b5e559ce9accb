"""The kubernetes provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scalable.providers.base import OptionsModel, ValidationReport
from scalable.providers.kubernetes.traits import TRAITS

if TYPE_CHECKING:
    from scalable.providers.base import DeploymentSpec, ScalePlan
    from scalable.providers.kubernetes.cluster import KubernetesCluster


class KubernetesProvider:
    """Provider whose scheduler and workers are pods; the manager runs in the user's process.

    Its clusters end with the process that made them. Detached clusters, and clusters through the
    Dask Kubernetes operator, are not available yet.
    """

    name = "kubernetes"
    options_model = OptionsModel("scalable.providers.kubernetes.options", "KubernetesOptions")
    traits = TRAITS

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Check mounts, scripts and the pod template; do not contact Kubernetes."""
        from scalable.providers.kubernetes.drafts import findings

        report = ValidationReport()
        report.extend(findings(spec))
        return report

    def check(self, spec: DeploymentSpec) -> ValidationReport:
        """Compare the request with the live cluster; nothing is started.

        Asked are the version, the namespace, the user's permissions, quotas, nodes and volume
        claims.

        Raises
        ------
        ProviderError
            When the API server does not answer.
        """
        from scalable.providers.kubernetes.check import check

        return check(spec)

    def render_objects(self, spec: DeploymentSpec, counts: Mapping[str, int]) -> dict[str, bytes]:
        """Return file name -> each object that a cluster consists of, as it is sent.

        Parameters
        ----------
        spec
            The request.
        counts
            Tag -> number of workers.
        """
        from scalable.providers.kubernetes.drafts import objects

        return objects(spec, counts)

    def build_cluster(self, spec: DeploymentSpec) -> KubernetesCluster:
        """Start a scheduler in a pod, and connect to it; its pools are empty.

        Raises
        ------
        NotImplementedError
            When the target asks for the Dask Kubernetes operator.
        ProviderError
            When Kubernetes refuses an object, or the scheduler's pod does not run in time; nothing
            is left running.
        """
        if spec.options["operator"]:
            raise NotImplementedError(
                f"target {spec.target_name!r}: operator: true is not available in this version; "
                "without it, scalable makes the pods itself"
            )
        from scalable.providers.kubernetes.cluster import KubernetesCluster
        from scalable.providers.kubernetes.drafts import read_template

        return KubernetesCluster(spec, read_template(spec))

    def scale(self, cluster: Any, plan: ScalePlan) -> None:
        """Set pools to the counts of the plan; pods come and go in the background."""
        cluster.scale_to_plan(dict(plan.workers_by_tag))

    def close(self, cluster: Any) -> None:
        """Delete the cluster's root object, and wait until everything that it owns is gone."""
        if cluster is not None:
            cluster.close()
