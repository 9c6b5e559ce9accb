"""Tables of a manifest's components for notebooks."""

from __future__ import annotations

from scalable.showing.tables import Column, Table, row
from scalable.spec import DeploymentSpec
from scalable.spec.components import WorkerRange

_COLUMNS = (
    Column("pool"),
    *(Column(title, number=True) for title in ("workers", "cpus", "memory", "gpus")),
    Column("tasks"),
)


def component_table(spec: DeploymentSpec) -> Table:
    """Return the components of a deployment as the manifest requests them."""
    rows = []
    for tag, component in spec.components.items():
        tasks = [task.name for task in spec.tasks.values() if task.component == tag]
        workers = _range(component.workers)
        memory = "-" if component.memory is None else component.memory
        texts = (tag, workers, f"{component.cpus:g}", memory, component.gpus, ", ".join(tasks))
        rows.append(row(tag, texts, texts, pool=tag))
    return Table(_COLUMNS, tuple(rows), "no components")


def _range(workers: WorkerRange | None) -> str:
    if workers is None:
        return "-"
    if workers.fixed is not None:
        return str(workers.fixed)
    most = "any" if workers.maximum is None else workers.maximum
    return f"{workers.minimum} to {most}"
