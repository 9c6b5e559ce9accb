"""Choice of the target to run on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping

from scalable import settings

logger = logging.getLogger("scalable.manifest")


def choose_target(
    targets: Mapping[str, str],
    target: str | None = None,
    inside_job_of: Callable[[str], bool] = lambda _: False,
) -> str | None:
    """Return the target to run on, or None if no rule selects one.
    The rules, in order: --target of ``scalable run``, the ``target`` argument, SCALABLE_TARGET,
    the target in whose batch system this process is a job, the target ``local``, the only target.
    """
    asked = _asked_target(target)
    if target is not None and asked != target:
        logger.warning("--target %s wins over target=%r of the workflow", asked, target)
    if asked is not None:
        return asked
    for name, provider in targets.items():
        if inside_job_of(provider):
            return name
    if "local" in targets:
        return "local"
    return next(iter(targets)) if len(targets) == 1 else None


def _asked_target(target: str | None) -> str | None:
    return os.environ.get(settings.RUN_TARGET) or target or os.environ.get(settings.TARGET) or None
