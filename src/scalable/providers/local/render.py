"""What a worker process is told: its options and its environment. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalable.protocol.exit_codes import CALL_DID_NOT_END, OUT_OF_MEMORY
from scalable.spec import ComponentSpec
from scalable.units import format_bytes


def memory_limit(component: ComponentSpec) -> int:
    """Bytes that a worker may use; 0 for no limit."""
    return component.memory_bytes or 0


def thread_options(component: ComponentSpec, slots: int) -> dict[str, Any]:
    """Options of a Dask worker that is threads of the user's process."""
    return {"nthreads": slots, "resources": {component.name: slots}, "memory_limit": 0}


def process_options(component: ComponentSpec, slots: int, directory: Path | None) -> dict[str, Any]:
    """Options of a worker process.

    Parameters
    ----------
    component
        Its resource profile.
    slots
        Calls that it runs at once.
    directory
        Where relative paths of the manifest start.
    """
    preload = [] if component.preload_script is None else [resolve(component, directory)]
    return {
        "nthreads": slots,
        "resources": {component.name: slots},
        "memory_limit": memory_limit(component),
        "preload": [str(path.resolve()) for path in preload],
        "env": component.environment(slots),
    }


def resolve(component: ComponentSpec, directory: Path | None) -> Path:
    """Path of a component's preload script; relative ones start at the manifest."""
    assert component.preload_script is not None
    return (directory or Path.cwd()) / Path(component.preload_script).expanduser()


def own_paths(
    component: ComponentSpec, directory: Path | None, sys_path: Sequence[str]
) -> list[str]:
    """Paths that a container has to see: the script's directory, and the preload script."""
    script = next(iter(sys_path), "")
    paths = [str(Path(script).resolve())] if Path(script).is_dir() else []
    if component.preload_script is not None:
        paths.append(str(resolve(component, directory).resolve()))
    return paths


def end_of(returncode: int, limit: int) -> str:
    """How a worker process ended, in words.

    Parameters
    ----------
    returncode
        Its exit code, negative for a signal.
    limit
        Its memory limit in bytes, 0 for none.
    """
    if returncode == OUT_OF_MEMORY:
        return f"it ran out of memory (limit {format_bytes(limit)})"
    if returncode == CALL_DID_NOT_END:
        return "it ended itself because an interrupted call did not end"
    if returncode > 128:  # a container's client says so what ended the worker inside
        returncode = 128 - returncode
    if returncode < 0:
        import signal  # commands that start nothing do not need its enumerations

        names = {number.value: number.name for number in signal.Signals}
        return f"it was killed by {names.get(-returncode, f'signal {-returncode}')}"
    return f"it ended with exit code {returncode}"
