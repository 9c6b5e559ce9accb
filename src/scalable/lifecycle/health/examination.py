"""All checks of this machine, and those of a target."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from scalable import settings
from scalable.errors import ClusterError
from scalable.lifecycle.health.machine import (
    containers_row,
    directory_rows,
    interface_row,
    limit_row,
    port_row,
    program_row,
    shared_row,
    terminal_row,
)
from scalable.lifecycle.health.packages import extra_rows, version_rows
from scalable.lifecycle.health.rows import Row
from scalable.providers.registry import provider_names, provider_traits
from scalable.spec import DeploymentSpec

_MOUNTS = Path("/proc/self/mountinfo")


def examine(spec: DeploymentSpec | None = None) -> Iterator[Row]:
    """Yield the rows about this machine, and about a target as far as this machine knows.

    Parameters
    ----------
    spec
        Specification of the target, or None.
    """
    chosen = None if spec is None else spec.provider_name
    yield from version_rows()
    yield from extra_rows(() if chosen is None else provider_traits(chosen).extras)
    try:
        state = settings.state_dir()
    except ClusterError as error:
        yield Row("state directory", "fail", error.message, error.hint or "")
        state = None
    if state is not None:
        yield from directory_rows("state directory", state, private=True)
    yield from directory_rows("runs directory", settings.runs_dir().absolute(), private=False)
    for name in provider_names() if chosen is None else (chosen,):
        for program in provider_traits(name).programs:
            yield program_row(name, program, needed=chosen is not None)
    yield containers_row()
    yield port_row()
    yield limit_row(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield terminal_row()
    if spec is not None:
        yield from _target(spec, state)


def _target(spec: DeploymentSpec, state: Path | None) -> Iterator[Row]:
    traits = provider_traits(spec.provider_name)
    if traits.shares_files and not traits.on_this_machine and state is not None:
        mounts = _MOUNTS.read_text() if _MOUNTS.exists() else ""
        yield shared_row(state.absolute(), mounts)
    interface = spec.options.get("interface")
    if interface:
        yield interface_row(str(interface))
