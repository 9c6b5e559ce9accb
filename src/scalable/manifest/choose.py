"""Which target to run on."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from scalable import settings

logger = logging.getLogger("scalable.manifest")


def choose_target(targets: Mapping[str, str], target: str | None = None) -> str | None:
    """Which target to run on, by the order below; None where it is not clear.

    The one that is asked for, then SCALABLE_TARGET, then a slurm target when inside a Slurm job,
    then ``local``, then the only one.

    Parameters
    ----------
    targets
        Name of each target -> name of its provider.
    target
        What the workflow asks for. ``scalable run --target`` wins over it, with a warning.
    """
    asked = _asked_target(target)
    if target is not None and asked != target:
        logger.warning("--target %s wins over target=%r of the workflow", asked, target)
    if asked is not None:
        return asked
    on_slurm = [name for name, provider in targets.items() if provider == "slurm"]
    if settings.inside_slurm_job() and on_slurm:
        return on_slurm[0]
    if "local" in targets:
        return "local"
    return next(iter(targets)) if len(targets) == 1 else None


def _asked_target(target: str | None) -> str | None:
    return os.environ.get(settings.RUN_TARGET) or target or os.environ.get(settings.TARGET) or None
