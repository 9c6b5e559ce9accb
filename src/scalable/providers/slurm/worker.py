"""The command of a worker that is a Slurm job. Pure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalable.providers.slurm.render import UNIT
from scalable.spec import ComponentSpec


def worker_command(component: ComponentSpec, options: Mapping[str, Any], config: Path) -> str:
    """Shell text that becomes a worker, with :data:`UNIT` in place of its name.

    Parameters
    ----------
    component
        Its resource profile.
    options
        Options of the target.
    config
        File with its configuration and credentials.
    """
    command = [sys.executable, "-m", "scalable.cluster.worker_process", str(config), UNIT]
    return f"exec {shlex.join(command)}"
