"""The kubernetes provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scalable.providers.base import OptionsModel, ValidationReport
from scalable.providers.kubernetes.kubeconfig import current_place
from scalable.providers.kubernetes.objects import findings, objects, read_template
from scalable.providers.kubernetes.traits import TRAITS

if TYPE_CHECKING:
    from scalable.manager.pools import ManagerSite, Pool
    from scalable.providers.base import DeploymentSpec, ScalePlan
    from scalable.providers.kubernetes.remote import KubernetesPlace
    from scalable.providers.kubernetes.services import KubernetesServices
    from scalable.providers.remote.session_cluster import SessionCluster


class KubernetesProvider:
    """Provider with scheduler and workers in pods.
    A session's manager runs in the user's process, or with ``manager: there`` in a pod.
    """

    name = "kubernetes"
    options_model = OptionsModel("scalable.providers.kubernetes.options", "KubernetesOptions")
    traits = TRAITS

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Check mounts, scripts and the pod template, without contacting Kubernetes."""
        report = ValidationReport()
        report.extend(findings(spec))
        return report

    def check(self, spec: DeploymentSpec) -> ValidationReport:
        """Compare version, permissions, quotas, nodes, claims and kinds with the live cluster."""
        from scalable.providers.kubernetes.check import check

        return check(spec)

    def render_objects(
        self, spec: DeploymentSpec, counts: Mapping[str, int], name: str | None = None
    ) -> dict[str, bytes]:
        """Return the objects of a cluster by file name, as they would be sent."""
        return objects(spec, counts, name)

    def build_cluster(self, spec: DeploymentSpec) -> SessionCluster:
        """Start a scheduler with empty pools in a pod. After an error nothing is left running."""
        from scalable.providers.kubernetes.services import KubernetesSite
        from scalable.providers.remote.session_cluster import SessionCluster

        template = read_template(spec)
        return SessionCluster(spec, lambda its_id: KubernetesSite(spec, template, its_id), TRAITS)

    def scale(self, cluster: Any, plan: ScalePlan) -> None:
        """Set pools to the plan's numbers of workers, in the background."""
        cluster.scale_to_plan(dict(plan.workers_by_tag))

    def close(self, cluster: Any) -> None:
        """Delete the cluster's root object, and wait until all its objects are deleted."""
        if cluster is not None:
            cluster.close()

    # Detached clusters ----------------------------------------------------------------------------

    def places(self) -> list[dict[str, str]]:
        place = current_place()
        return [] if place is None else [place]

    def place_of(self, spec: DeploymentSpec) -> dict[str, str]:
        """Return the target's site: ``context`` and ``namespace``."""
        from scalable.providers.kubernetes.services import place_of

        return place_of(spec.options)

    def remote(self, place: Mapping[str, str]) -> KubernetesPlace:
        from scalable.providers.kubernetes.api import load_library
        from scalable.providers.kubernetes.remote import KubernetesPlace

        load_library()
        return KubernetesPlace(place)

    def pools(self, spec: DeploymentSpec, site: ManagerSite) -> list[Pool]:
        from scalable.providers.kubernetes.launcher import pools

        return pools(spec, site)

    def services(self, spec: DeploymentSpec | None = None) -> KubernetesServices:
        """Return an object that starts the scheduler and the managers as Jobs."""
        from scalable.providers.kubernetes.services import KubernetesServices

        return KubernetesServices(spec)

    def delete(self, cluster_id: str) -> list[str]:
        """Delete a recorded cluster's root object and all it owns. A missing record is success."""
        from scalable.records import ClusterDirectory

        try:
            record = ClusterDirectory(ClusterDirectory.parent() / cluster_id).record()
        except FileNotFoundError:
            return []
        return self.remote(record.place).delete(cluster_id) if record.remote else []
