"""The choice of a component's container runtime."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from scalable.containers.request import Runtime
from scalable.errors import ProviderError

#: Runtimes in the order in which ``auto`` tries them. Apptainer is usual on clusters, and
#: podman, unlike docker, needs no daemon.
RUNTIMES: tuple[Runtime, ...] = ("apptainer", "podman", "docker")

#: Value of a component's ``runtime``: run this machine's Python in the container of any runtime.
HOST = "host"


def named_runtime(name: str) -> Runtime:
    """Return the runtime of a name. Raise ValueError for an unknown name."""
    return RUNTIMES[RUNTIMES.index(name)]


def choose_runtime(
    asked: str,
    component_runtime: str | None = None,
    which: Callable[[str], str | None] = shutil.which,
) -> Runtime | None:
    """Return the runtime of one component, or None to run without a container.
    The component's setting overrides the target's, except ``none``: a cluster's manifest then runs
    on a laptop without containers. None or ``host`` leaves the choice to the target. Raises
    ProviderError if the runtime is unknown or not installed.
    """
    wanted = asked if component_runtime in (None, HOST) else component_runtime
    if "none" in (asked, wanted):
        return None
    installed = [name for name in RUNTIMES if which(name)]
    if wanted == "auto" and installed:
        return installed[0]
    for name in installed:
        if name == wanted:
            return name
    here = f"installed: {', '.join(installed)}" if installed else "none is installed"
    if wanted == "auto":
        raise ProviderError(
            f"no container runtime is on PATH; supported: {', '.join(RUNTIMES)}",
            hint="install one or load its module, or write none",
        )
    if wanted not in RUNTIMES:
        raise ProviderError(
            f"container runtime {wanted!r} is unknown ({here})",
            hint=f"write one of: {', '.join(RUNTIMES)}, auto, none",
        )
    raise ProviderError(
        f"container runtime {wanted!r} is not on PATH ({here})",
        hint="install it or load its module, or write auto or none",
    )
