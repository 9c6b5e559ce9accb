"""The local provider: checks of a request, and construction of its cluster and pools."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from scalable import settings
from scalable.errors import ProviderError
from scalable.providers.base import Diagnostic, OptionsModel, ValidationReport
from scalable.providers.local.render import resolve, workflow_directory
from scalable.providers.local.traits import TRAITS
from scalable.units import format_bytes

if TYPE_CHECKING:
    from scalable.manager.pool_cluster import PoolCluster
    from scalable.manager.pools import ManagerSite, Pool
    from scalable.providers.base import DeploymentSpec, ScalePlan
    from scalable.providers.local.fork_server import ForkServerProcess

logger = logging.getLogger("scalable.providers")


class LocalProvider:
    """Provider whose pools run on this machine.

    With ``processes: false`` the workers are threads of the user's process. No port is opened, and
    memory limits are not enforced. With ``processes: true`` each worker is a process with
    its memory limit and environment, and the scheduler listens on loopback and accepts only this
    cluster's credentials.
    """

    name = "local"
    options_model = OptionsModel("scalable.providers.local.options", "LocalOptions")
    traits = TRAITS
    #: Longest time that a session waits for its workers at the start, in seconds.
    ready_timeout_s = 60.0

    def __init__(self) -> None:
        self._prepared: ForkServerProcess | None = None

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Check the components against the target's mode and this machine."""
        report = ValidationReport()
        target = ("targets", spec.target_name)
        if not spec.options["processes"]:
            report.extend(_needs_processes(spec, target))
        for tag, component in spec.components.items():
            if component.preload_script is not None:
                script = resolve(component, workflow_directory(spec))
                if not script.is_file():
                    report.add(
                        Diagnostic(
                            "E_BAD_OPTION",
                            ("components", tag, "preload_script"),
                            f"there is no file {script}",
                            hint="relative paths start at the manifest's directory",
                        )
                    )
        report.extend(_larger_than_machine(spec))
        report.extend(_without_effect(spec))
        return report

    def prepare(self, spec: DeploymentSpec) -> Callable[[], None]:
        """Start the fork server early. It loads the modules of workers in the background.

        Returns
        -------
        callable
            Function that stops the server unless :meth:`build_cluster` has taken it over.
        """
        if spec.options["processes"] and self._prepared is None:
            self._prepared = _fork_server(spec)
        return self._end_prepared

    def _end_prepared(self) -> None:
        server, self._prepared = self._prepared, None
        if server is not None:
            server.close()

    def build_cluster(self, spec: DeploymentSpec) -> PoolCluster:
        """Start a scheduler on this machine. Its pools are empty."""
        from scalable.providers.local.cluster import build_cluster

        options = spec.options
        if options["dashboard_address"] and find_spec("bokeh") is None:
            raise ProviderError("the dashboard needs bokeh", hint="pip install bokeh")
        processes = bool(options["processes"])
        server, self._prepared = self._prepared, None
        if server is None and processes:
            server = _fork_server(spec)
        try:
            return build_cluster(spec, server)
        except BaseException:
            if server is not None:
                server.close()
            raise

    def pools(self, spec: DeploymentSpec, site: ManagerSite) -> list[Pool]:
        """Return the empty pools of a manager. Their workers are processes of this machine.

        Raises
        ------
        ProviderError
            If a component's container cannot be started.
        """
        from scalable.providers.local.launcher import process_pools

        return process_pools(spec, site)

    def check(self, spec: DeploymentSpec) -> ValidationReport:
        """Start each component's container once, to check that workers can run in its image.

        Raises
        ------
        ProviderError
            If a container runtime is not installed, or a mount does not exist.
        """
        from scalable.containers import image_findings
        from scalable.protocol.code import search_path
        from scalable.providers.local.launcher import container_requests

        report = ValidationReport()
        report.extend(image_findings(container_requests(spec, search_path())))
        return report

    def discover(self) -> list[dict[str, Any]]:
        """Return the clusters with processes on this machine (see :mod:`.discovery`)."""
        from scalable.providers.local.processes import discover

        return discover()

    def delete(self, cluster_id: str) -> list[str]:
        """Stop every process of a cluster on this machine, if there are any."""
        from scalable.providers.local.processes import delete

        return delete(cluster_id)

    def scale(self, cluster: Any, plan: ScalePlan) -> None:
        """Set the sizes of the pools to the plan's counts."""
        cluster.scale(dict(plan.workers_by_tag))

    def close(self, cluster: Any) -> None:
        """Stop the workers and the scheduler."""
        cluster.close()


def _fork_server(spec: DeploymentSpec) -> ForkServerProcess | None:
    """Start a fork server, or return None if the system or all components rule it out."""
    from scalable.providers.local.fork_server import ForkServerProcess, supported

    if not supported() or not any(_is_plain(spec, tag) for tag in spec.components):
        return None
    try:
        return ForkServerProcess()
    except OSError as error:
        logger.warning("workers are started without a fork server: %s", error)
        return None


def _is_plain(spec: DeploymentSpec, tag: str) -> bool:
    """Return whether the workers of a component can be forked."""
    from scalable.providers.local.fork_server import StartRequest, can_fork

    component = spec.components[tag]
    if component.setup:
        return False
    server = settings.outside_step(os.environ)
    environment = {**server, **component.environment(spec.options["threads_per_worker"])}
    return can_fork(
        StartRequest(
            environment=environment,
            preload=() if component.preload_script is None else (component.preload_script,),
            container=component.image is not None and spec.options["containers"] != "none",
            interpreter=component.python or sys.executable,
            server_environment=server,
            server_interpreter=sys.executable,
        )
    )


def _needs_processes(spec: DeploymentSpec, target: tuple[str, str]) -> list[Diagnostic]:
    hint = f"set processes: true on target {spec.target_name!r}"
    found = [
        Diagnostic(
            "E_BAD_OPTION",
            ("components", tag, key),
            f"{key} needs a separate process, but this target runs workers as threads",
            hint=hint,
        )
        for tag, component in spec.components.items()
        for key in ("env", "secrets", "preload_script", "setup", "python")
        if getattr(component, key)
    ]
    if spec.options["containers"] != "none":
        message = "containers need processes, but this target runs workers as threads"
        found.append(Diagnostic("E_BAD_OPTION", (*target, "containers"), message, hint=hint))
    return found


def _without_effect(spec: DeploymentSpec) -> list[Diagnostic]:
    """Return warnings about settings that have no effect on this target."""
    threads = spec.options["threads_per_worker"]
    found = []
    for tag, component in spec.components.items():
        if component.slots not in (1, threads):
            message = f"a worker on this target has threads_per_worker slots ({threads})"
            found.append((tag, "slots", message, f"set threads_per_worker: {component.slots}"))
        if component.image is not None and spec.options["containers"] == "none":
            message = "the image is not used: this target runs workers without containers"
            found.append((tag, "image", message, "set containers: auto to use it"))
    return [
        Diagnostic("W_NOT_APPLIED", ("components", tag, key), text, hint, severity="warning")
        for tag, key, text, hint in found
    ]


def _larger_than_machine(spec: DeploymentSpec) -> list[Diagnostic]:
    memory, cores = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), os.cpu_count() or 1
    found = []
    for tag, component in spec.components.items():
        if component.memory_bytes is not None and component.memory_bytes > memory:
            found.append((tag, "memory", component.memory, format_bytes(memory)))
        if component.cpus > cores:
            found.append((tag, "cpus", f"{component.cpus:g}", f"{cores}"))
    return [
        Diagnostic(
            "W_LARGER_THAN_MACHINE",
            ("components", tag, key),
            f"{key} {asked} is more than this machine has ({has}); workers will start anyway",
            severity="warning",
        )
        for tag, key, asked, has in found
    ]
