"""The run whose results are kept for resuming it, as clients need it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from scalable import settings
from scalable.cache.run_results import remove_expired
from scalable.errors import ClusterError
from scalable.model import DeploymentSpec, KeepResults
from scalable.model.remembering import Keeping
from scalable.units import counted

logger = logging.getLogger("scalable.clusters")


def keeping_of(spec: DeploymentSpec, run: Path | None) -> Keeping | None:
    """Return the run whose results are kept, or None if they are not.
    They are kept if the manifest says so, or if another run is resumed, whose results are then
    needed longer. Raise ClusterError if the run would resume itself.
    """
    resumed = os.environ.get(settings.RESUMED)
    if spec.keep_results is None and not resumed:
        return None
    if run is None:
        logger.warning("results are not kept for resuming: this run is not recorded")
        return None
    if resumed and Path(resumed) == run.absolute():
        raise ClusterError(
            f"{run.name} is the record of the running cluster: it cannot be resumed on it",
            hint="give --resume another run, or end the cluster first",
        )
    limit = (spec.keep_results or KeepResults()).size
    return Keeping(str(run.absolute()), resumed or None, limit)


def remove_old_results(spec: DeploymentSpec, run: Path) -> None:
    """Remove results of earlier runs that are older than the manifest's limit."""
    if spec.keep_results is None:
        return
    resumed = os.environ.get(settings.RESUMED)
    except_for = Path(resumed) if resumed else None
    removed = remove_expired(run.absolute().parent, spec.keep_results.age_s, except_for=except_for)
    if removed:
        logger.info("the kept results of %s are removed: they are too old", counted(removed, "run"))
