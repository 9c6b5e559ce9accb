"""Which container runtime a component runs in."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from scalable.containers.request import Runtime
from scalable.errors import ProviderError

#: In the order in which ``auto`` looks: the one that clusters have, then the one that needs no
#: daemon.
RUNTIMES: tuple[Runtime, ...] = ("apptainer", "podman", "docker")

#: What a component may write under ``runtime`` that is not the name of a runtime: it wants the
#: host's Python inside.
HOST = "host"


def choose_runtime(
    asked: str,
    component_runtime: str | None = None,
    which: Callable[[str], str | None] = shutil.which,
) -> Runtime | None:
    """Choose the runtime of one component.

    Parameters
    ----------
    asked
        What the target says: ``none``, ``auto`` or a name. ``none`` wins over the component, so
        that a manifest made for a cluster runs on a laptop without containers.
    component_runtime
        What the component says, which wins over the target otherwise; None or ``host`` leaves the
        choice to the target.
    which
        Finds a program on PATH, as :func:`shutil.which` does.

    Returns
    -------
    Runtime or None
        ``apptainer``, ``podman``, ``docker``, or None to run without a container.

    Raises
    ------
    ProviderError
        When what is asked for is not installed, or unknown.
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
            f"no container runtime is on PATH: looked for {', '.join(RUNTIMES)}",
            hint="install one or load its module, or ask for none",
        )
    if wanted not in RUNTIMES:
        raise ProviderError(
            f"there is no container runtime {wanted!r} ({here})",
            hint=f"write one of: {', '.join(RUNTIMES)}, auto, none",
        )
    raise ProviderError(
        f"container runtime {wanted!r} is not on PATH ({here})",
        hint="install it or load its module, or ask for auto or none",
    )
