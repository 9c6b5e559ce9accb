"""A cluster's deployment spec: its stored form, kept results, prices and bounds."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from scalable import settings
from scalable.cache.resume import remove_expired
from scalable.errors import ClusterError
from scalable.files import read_secrets
from scalable.forecasting import quoted_prices
from scalable.model import DeploymentSpec, KeepResults, WorkerRange
from scalable.model.cache_settings import Keeping
from scalable.model.codec import SpecFormatError, decode_spec, encode_spec
from scalable.model.costs import HourlyPrice
from scalable.planning import total_maximum
from scalable.planning.billing import always_of
from scalable.planning.unit_prices import unit_prices
from scalable.providers.registry import get_provider, option_models, provider_traits
from scalable.records import ClusterDirectory
from scalable.scaling.policy import Claim, shared_out
from scalable.units import counted

logger = logging.getLogger("scalable.clusters")


def encoded(spec: DeploymentSpec) -> str | None:
    """Return the JSON form of a spec, or None if an option cannot be encoded."""
    try:
        return encode_spec(spec)
    except TypeError as error:
        logger.debug("the spec of target %s cannot be stored: %s", spec.target_name, error)
        return None


def secrets_of(spec: DeploymentSpec) -> str:
    """Return a spec's secret values by tag and variable, as JSON. May raise ClusterError."""
    directory = None if spec.workflow_dir is None else Path(spec.workflow_dir)
    return json.dumps(
        {tag: read_secrets(part.secrets, directory) for tag, part in spec.components.items()}
    )


def stored_spec(directory: ClusterDirectory, manager: str | None = None) -> DeploymentSpec:
    """Return a manager's spec, or the scheduler's for None. May raise ClusterError."""
    text = directory.spec_text(manager)
    if text is None:
        return _from_manifest(directory, manager)
    try:
        return decode_spec(text)
    except SpecFormatError as error:
        raise ClusterError(f"the stored spec of cluster {directory.id} is {error}") from error


def _from_manifest(directory: ClusterDirectory, manager: str | None) -> DeploymentSpec:
    # Imported here because it is rarely needed: importing pydantic takes longer than starting a
    # manager.
    from scalable.manifest import Manifest

    record = directory.record()
    target = record.target if manager is None else record.managers[manager]["target"]
    file = directory.manifest_path(manager)
    spec = Manifest.load(file, option_models(), target=target).resolve(target).spec
    return dataclasses.replace(spec, workflow_dir=record.workflow_dir)


# Results that are kept ----------------------------------------------------------------------------


def keeping_of(spec: DeploymentSpec, run: Path | None) -> Keeping | None:
    """Return how a run's results are kept, or None. ClusterError if a run would resume itself."""
    resumed = os.environ.get(settings.RESUMED)
    if spec.keep_results is None and not resumed:
        return None
    if run is None:
        logger.warning("results are not kept for resuming: this run is not recorded")
        return None
    if resumed and Path(resumed) == run.absolute():
        raise ClusterError(
            f"{run.name} is the record of the running cluster, which cannot resume itself",
            hint="give --resume another run, or stop the cluster first",
        )
    limit = (spec.keep_results or KeepResults()).size
    despite_code = bool(resumed and os.environ.get(settings.RESUMED_DESPITE_CODE))
    return Keeping(str(run.absolute()), resumed or None, limit, despite_code)


def remove_old_results(spec: DeploymentSpec, run: Path) -> None:
    """Remove results of earlier runs that are older than the manifest's limit."""
    if spec.keep_results is None:
        return
    resumed = os.environ.get(settings.RESUMED)
    except_for = Path(resumed) if resumed else None
    removed = remove_expired(run.absolute().parent, spec.keep_results.age_s, except_for=except_for)
    if removed:
        logger.info("the kept results of %s are removed: they are too old", counted(removed, "run"))


# Prices -------------------------------------------------------------------------------------------


def worker_prices(spec: DeploymentSpec) -> dict[str, dict[str, float]]:
    """Map tags to the price of one worker, in the form that managers report."""
    quoted = quoted_prices(get_provider(spec.provider_name), spec)
    return unit_prices(spec, provider_traits(spec.provider_name).starting, quoted)


def with_prices(spec: DeploymentSpec) -> DeploymentSpec:
    """Return the spec with its provider's prices. The manifest's prices take precedence."""
    quoted = quoted_prices(get_provider(spec.provider_name), spec)
    return spec if quoted is None else replace(spec, prices={**quoted.hourly_by_tag, **spec.prices})


def program_price(spec: DeploymentSpec, *, detached: bool) -> HourlyPrice | None:
    """Return the price of the scheduler's machine and, if ``detached``, the managers' machines."""
    quoted = quoted_prices(get_provider(spec.provider_name), spec, detached=detached)
    always = always_of(quoted, None)
    if not always.rate:
        return None
    return HourlyPrice(3600 * always.rate, always.minimum_s, always.granularity_s)


# Bounds -------------------------------------------------------------------------------------------


def within_bounds(
    spec: DeploymentSpec, wanted: Mapping[str, int], counts: Mapping[str, int]
) -> dict[str, int]:
    """Limit counts to the manifest's bounds. A pool that is outside them may keep its count."""
    held: dict[str, int] = {}
    for tag, count in counts.items():
        own = spec.components[tag].workers or WorkerRange()
        low = min(own.minimum, wanted[tag])
        high = count if own.maximum is None else max(own.maximum, wanted[tag])
        held[tag] = max(low, min(count, high))
    total = total_maximum(spec)
    if total is None:
        return held
    others = sum(count for tag, count in wanted.items() if tag not in held)
    claims = {tag: Claim(min(count, wanted[tag]), count, count) for tag, count in held.items()}
    return shared_out(total - others, claims)
