"""Processes of detached clusters on this machine: finding and stopping them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalable import settings
from scalable.errors import ProviderError
from scalable.liveness import end_process, identify
from scalable.providers.local.processes import (
    KILL_S,
    TERMINATE_S,
    Program,
    WorkerProcess,
    find_scratch,
    programs,
    wait_for_exits,
)

#: Modules of the worker and manager programs.
WORKER, MANAGER = "scalable.worker.program", "scalable.clusters.programs.manager"
#: Largest number of searches for processes. One search is not enough: a manager may start another
#: worker while the manager is being ended.
ROUNDS = 5


def discover() -> list[dict[str, Any]]:
    """Return one row for each cluster in the state directory with a process on this machine."""
    parent = _parent()
    rows: dict[str, list[str]] = {}
    for program in programs(parent):
        cluster_id = Path(program.arguments[0]).relative_to(parent).parts[0]
        rows.setdefault(cluster_id, []).append(_describe(program))
    return [
        {"id": cluster_id, "provider": "local", "what": ", ".join(found)}
        for cluster_id, found in rows.items()
    ]


def delete(cluster_id: str) -> list[str]:
    """Stop a cluster's processes except this one, and remove their scratch directories.
    Return descriptions of the processes. Idempotent. Raise ProviderError if a process does not
    stop.
    """
    ended: list[str] = []
    directory = _parent() / cluster_id
    for _ in range(ROUNDS):
        found = list(programs(directory))
        if not found:
            break
        ended += [_describe(program) for program in found]
        # Managers first: they replace workers that end.
        _end_programs([program for program in found if program.module == MANAGER])
        _end_workers([program for program in found if program.module == WORKER])
        _end_programs([p for p in found if p.module not in (MANAGER, WORKER)])
    else:
        left = ", ".join(_describe(program) for program in programs(directory))
        if left:
            raise ProviderError(
                f"processes of cluster {cluster_id} still run after {ROUNDS} attempts to end "
                f"them: {left}"
            )
    for scratch in find_scratch(cluster_id):
        shutil.rmtree(scratch, ignore_errors=True)
    return list(dict.fromkeys(ended))


def _parent() -> Path:
    return settings.state_dir() / "clusters"


def _describe(program: Program) -> str:
    kind = program.module.rpartition(".")[2].removesuffix("_process")
    name = f" {program.arguments[1]}" if len(program.arguments) > 1 else ""
    return f"{kind}{name} (process {program.process.pid})"


def _end_programs(found: Sequence[Program]) -> None:
    for program in found:
        if program.process.is_running():
            end_process(identify(program.process.pid), TERMINATE_S, KILL_S)


def _end_workers(found: Sequence[Program]) -> None:
    workers = [WorkerProcess(program.process) for program in found]
    for worker in workers:
        worker.terminate()
    wait_for_exits(workers, TERMINATE_S)
    for worker in workers:
        worker.end()
