"""Options and environment of worker processes, and reasons for their exits. Nothing is started."""

from __future__ import annotations

import errno
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalable.errors import ProviderError
from scalable.model import ComponentSpec, DeploymentSpec, names
from scalable.protocol.operations import OUT_OF_MEMORY
from scalable.units import as_written

#: Errors that occur again on a second attempt: a name, a path or an environment is wrong.
_LASTING = frozenset({errno.E2BIG, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG})


def is_transient(error: BaseException) -> bool:
    """Return whether a failed start may succeed later."""
    return isinstance(error, OSError) and error.errno not in _LASTING


def memory_limit(component: ComponentSpec) -> int:
    """Return the memory limit of a worker in bytes, or 0 for no limit."""
    return component.memory_bytes or 0


def thread_options(component: ComponentSpec, slots: int) -> dict[str, Any]:
    """Return the options of a Dask worker that runs as threads of the user's process."""
    return {"nthreads": slots, "resources": {component.name: slots}, "memory_limit": 0}


def process_options(component: ComponentSpec, slots: int, directory: Path | None) -> dict[str, Any]:
    """Return the options of a worker process.
    Relative paths start at ``directory``, or at the working directory if that is None. Raises
    ProviderError for an invalid variable of the component.
    """
    names.check_variables(component.env, ProviderError)
    preload = [] if component.preload_script is None else [resolve(component, directory)]
    return {
        "nthreads": slots,
        "resources": {component.name: slots},
        "memory_limit": memory_limit(component),
        "preload": [str(path.resolve()) for path in preload],
        "env": component.environment(slots),
        "setup": component.setup,
        "python": component.python,
    }


def workflow_directory(spec: DeploymentSpec) -> Path | None:
    """Return the directory of the workflow, or None if it is unknown."""
    return None if spec.workflow_dir is None else Path(spec.workflow_dir)


def resolve(component: ComponentSpec, directory: Path | None) -> Path:
    """Return the path of a component's preload script. A relative path starts at ``directory``."""
    assert component.preload_script is not None
    return (directory or Path.cwd()) / Path(component.preload_script).expanduser()


def own_paths(
    component: ComponentSpec, directory: Path | None, sys_path: Sequence[str]
) -> list[str]:
    """Return host paths to mount in a container: workflow directory and preload script."""
    script = next(iter(sys_path), "")
    paths = [str(Path(script).resolve())] if Path(script).is_dir() else []
    if component.preload_script is not None:
        paths.append(str(resolve(component, directory).resolve()))
    return paths


def end_of(returncode: int, limit: int) -> str:
    """Return the reason for a worker's exit. Codes below 0 are signals. A limit of 0 means none."""
    if returncode == OUT_OF_MEMORY:
        return f"it ran out of memory (limit {as_written(limit)})"
    if returncode > 128:  # a container's client reports a signal in the container this way
        returncode = 128 - returncode
    if returncode < 0:
        signals = {number.value: number.name for number in signal.Signals}
        return f"it was killed by {signals.get(-returncode, f'signal {-returncode}')}"
    return f"it exited (exit code {returncode})"
