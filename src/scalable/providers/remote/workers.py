"""Pools of a remote backend, and the configuration shared by a pool's workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalable.files import read_secrets
from scalable.manager.launcher import Launcher
from scalable.manager.pools import Pool
from scalable.model import ComponentSpec, DeploymentSpec
from scalable.worker.config import WorkerConfig, security_fields, serialized_config
from scalable.worker.process_worker import ProcessWorker


def pool_of(component: ComponentSpec, launcher: Launcher, spec: DeploymentSpec) -> Pool:
    """Return the pool of a component."""
    tasks = spec.tasks.values()
    lengths = [task.duration_s or 0.0 for task in tasks if task.component == component.name]
    return Pool(
        component.name,
        launcher,
        {"cls": ProcessWorker, "options": {}},
        component.slots,
        task_s=max(lengths, default=0.0),
        shape=shape_of(component),
    )


def shape_of(component: ComponentSpec) -> dict[str, Any]:
    """Return the resources of a component's workers as managers report them."""
    return {"cpus": component.cpus, "memory": component.memory, "gpus": component.gpus}


def worker_config(
    component: ComponentSpec,
    scheduler: str,
    security: Any,
    manager: str,
    *,
    once: bool = False,
    secrets: Mapping[str, Mapping[str, str]] | None = None,
) -> WorkerConfig:
    """Return the configuration of a component's workers. With ``once``, they refuse restarts.
    ``secrets`` has secret values by tag and variable. If it is None, this process reads them.
    """
    return WorkerConfig(
        scheduler=scheduler,
        name="",
        nthreads=component.slots,
        resources={component.name: component.slots},
        memory_limit=component.memory_bytes or 0,
        host="",
        hand_over=True,
        security=security_fields(security),
        manager=manager,
        secrets=(
            read_secrets(component.secrets)
            if secrets is None
            else dict(secrets.get(component.name, {}))
        ),
        once=once,
        dask_config=serialized_config(),
        shares_files=False,
    )
