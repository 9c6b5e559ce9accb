"""`Request`: one target of a manifest, which can be checked and planned but not started.
This module imports neither the session, nor ``clusters``, nor Dask.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalable import settings
from scalable.errors import ClusterError, ManifestError
from scalable.files import read_secrets
from scalable.model import DeploymentSpec, Diagnostic, ValidationReport, names
from scalable.providers.registry import get_provider, inside_job_of, option_models, provider_traits
from scalable.storage import scheme_of

if TYPE_CHECKING:
    from scalable.manifest import Manifest, ResolvedManifest
    from scalable.model import Plan

logger = logging.getLogger("scalable.session")


class Request:
    """A manifest with one chosen target, and that target's provider."""

    def __init__(self, resolved: ResolvedManifest, manifest: Manifest | None = None) -> None:
        self.resolved = resolved
        self.provider: Any = get_provider(resolved.spec.provider_name)
        self._manifest = manifest

    @classmethod
    def read(cls, path: str | os.PathLike[str] | None = None, target: str | None = None) -> Request:
        """Read a manifest and choose its target. ManifestError lists all errors or all targets."""
        from scalable.manifest import Manifest, choose_target, read_targets

        file = settings.manifest_path(path)
        targets = read_targets(file)
        chosen = choose_target(targets, target, inside_job_of)
        manifest = Manifest.load(file, option_models(), target=chosen)
        if chosen is None:
            raise ManifestError(
                f"no target was chosen; {file} has {', '.join(targets)}",
                hint=f"give target=, --target or {settings.TARGET}",
            )
        logger.debug("target %r of %s chosen from: %s", chosen, file, ", ".join(targets))
        return cls(manifest.resolve(chosen).with_budget(settings.budget()), manifest)

    @property
    def spec(self) -> DeploymentSpec:
        return self.resolved.spec

    @property
    def target(self) -> str:
        return self.spec.target_name

    @property
    def manifest(self) -> Manifest:
        if self._manifest is None:
            from scalable.manifest import Manifest

            self._manifest = Manifest.from_mapping(self.resolved.data, option_models())
        return self._manifest

    def validate(self) -> ValidationReport:
        """Check worker counts against their bounds, and run the provider's offline checks."""
        from scalable.planning import conflicts, notices

        report = ValidationReport()
        locate = self.resolved.locate
        if self._manifest is not None:
            report.extend(self._manifest.warnings)
        report.extend(locate(d) for d in self._long_tags())
        report.extend(locate(d) for d in notices(self.spec))
        report.extend(locate(d) for d in conflicts(self.spec))
        report.extend(locate(d) for d in self._without_image())
        report.extend(locate(d) for d in self._unseen_storage())
        report.extend(locate(d) for d in self._unused_prices())
        report.extend(locate(d) for d in self._of_images())
        found = self.provider.validate(self.spec)
        report.extend(locate(d) for d in [*found.errors, *found.warnings])
        return report

    def _long_tags(self) -> list[Diagnostic]:
        """Return errors for tags that are too long for the target's provider."""
        provider = self.spec.provider_name
        rule = names.TAG.limited(provider_traits(provider).longest_tag)
        faults = {tag: rule.fault(tag) for tag in self.spec.tags}
        hint = f"provider {provider!r} allows {rule.longest} characters: shorten the name"
        return [
            Diagnostic("E_BAD_OPTION", ("components", tag), fault, hint)
            for tag, fault in faults.items()
            if fault is not None
        ]

    def _without_image(self) -> list[Diagnostic]:
        """Return an error if the scheduler would run in the backend without an image."""
        provider, written = self.spec.provider_name, self.spec.options
        if not provider_traits(provider).remote or "image" not in written or written["image"]:
            return []
        return [
            Diagnostic(
                "E_MISSING_KEY",
                ("targets", self.target, "image"),
                f"the scheduler of a {provider} target has no image",
                hint="give image: in the target; docs/images.md shows how to make one",
            )
        ]

    def _unseen_storage(self) -> list[Diagnostic]:
        """Return a warning if workers cannot access the workflow's storage."""
        url, options = self.spec.storage_url, self.spec.options
        scheme = "" if url is None else scheme_of(url)
        if scheme == "memory" and options.get("processes") is not False:
            where = "the memory of one process: no other process can read what workers write there"
        elif scheme == "file" and not provider_traits(self.spec.provider_name).shares_files:
            where = "a directory of this machine, which workers see only through a mount"
        else:
            return []
        hint = "set a bucket, such as s3://bucket/prefix, in an overlay of this target"
        path = ("project", "default_storage")
        return [Diagnostic("E_BAD_OPTION", path, f"{url} is {where}", hint, "warning")]

    def _of_images(self) -> list[Diagnostic]:
        """Return errors for component options that remote targets do not support."""
        if not provider_traits(self.spec.provider_name).remote:
            return []
        return [
            Diagnostic(
                "E_BAD_OPTION",
                ("components", tag, key),
                f"provider {self.spec.provider_name!r} does not support {key}: it has images",
                "install what you need in the image, and leave it out here",
            )
            for tag, component in self.spec.components.items()
            for key in ("setup", "python")
            if getattr(component, key)
        ]

    def _unused_prices(self) -> list[Diagnostic]:
        """Return warnings for prices of unknown components, if the provider has no other prices."""
        if hasattr(self.provider, "estimate_cost"):
            return []
        return [
            Diagnostic(
                "W_NOT_APPLIED",
                ("targets", self.target, "prices", name),
                f"the price has no effect: there is no component {name!r}",
                f"the components are {', '.join(self.spec.tags)}",
                "warning",
            )
            for name in self.spec.prices
            if name not in self.spec.components
        ]

    def check(self) -> ValidationReport:
        """Check against the target's live state, for example in its batch system. Starts nothing.
        Raises NotImplementedError without a live check, and ProviderError if the target does not
        respond.
        """
        if not hasattr(self.provider, "check"):
            raise NotImplementedError(
                f"target {self.target!r}: provider {self.provider.name!r} has no live check"
            )
        report = ValidationReport()
        found = self.provider.check(self.spec)
        report.extend(self.resolved.locate(d) for d in [*found.errors, *found.warnings])
        report.extend(self.resolved.locate(d) for d in self._lacking_secrets())
        return report

    def _lacking_secrets(self) -> Iterator[Diagnostic]:
        directory = None if self.spec.workflow_dir is None else Path(self.spec.workflow_dir)
        for tag, component in self.spec.components.items():
            try:
                read_secrets(component.secrets, directory)
            except ClusterError as error:
                yield Diagnostic("E_BAD_OPTION", ("components", tag, "secrets"), str(error))

    def scripts(self) -> Mapping[str, str]:
        """Map tags to the start scripts of their workers. May raise NotImplementedError."""
        if not hasattr(self.provider, "render_scripts"):
            raise NotImplementedError(
                f"target {self.target!r}: provider {self.provider.name!r} has no job scripts"
            )
        found: Mapping[str, str] = self.provider.render_scripts(self.spec)
        return found

    def objects(self, plan: Plan, *, detached: bool = False) -> Mapping[str, bytes]:
        """Map file names to a cluster's objects as sent. May raise NotImplementedError."""
        if not hasattr(self.provider, "render_objects"):
            raise NotImplementedError(
                f"target {self.target!r}: provider {self.provider.name!r} has no objects to show"
            )
        counts = plan.scale_plan.workers_by_tag
        found: Mapping[str, bytes]
        if detached:
            from scalable.clusters.record import default_name

            found = self.provider.render_objects(self.spec, counts, default_name(self.spec))
        else:
            found = self.provider.render_objects(self.spec, counts)
        return found

    def plan(
        self,
        objective: str | None = None,
        policy: str | None = None,
        *,
        deadline: str | float | None = None,
        budget: float | None = None,
        detached: bool = False,
    ) -> Plan:
        """Predict the run from the manifest and from earlier runs of the project.
        For parameters and errors see :meth:`scalable.ScalableSession.plan`. If ``detached``, the
        cluster outlives its creator, so that managers have machines of their own.
        """
        from scalable.forecasting import gather, quoted_prices
        from scalable.planning import PlanRequest, make_plan
        from scalable.runs.report.plans import ShownPlan

        asked = PlanRequest.parse(objective, policy, deadline, budget)
        self.require_valid()
        prices = quoted_prices(self.provider, self.spec, detached=detached)
        plan = make_plan(self.spec, self.resolved.lock, gather(self.spec, prices), asked)
        logger.debug(
            "plan for target %r: workers %s, time %s s, digest %.12s",
            self.target,
            dict(plan.scale_plan.workers_by_tag),
            plan.predicted_time_s,
            plan.manifest_lock,
        )
        return ShownPlan(**vars(plan))

    def made(self, plan: Plan) -> bool:
        """Return whether a plan was made from the current manifest. Budgets may differ."""
        if plan.manifest_lock == self.resolved.lock:
            return True
        if self._manifest is None:
            return False
        return plan.manifest_lock == self._manifest.resolve(self.target).lock

    def require_valid(self) -> ValidationReport:
        """Return the report of :meth:`validate`, or raise ManifestError if it contains errors."""
        report = self.validate()
        if not report.ok:
            count = len(report.errors)
            raise ManifestError(
                f"target {self.target!r} cannot be used: {count} error{'s' * (count > 1)}",
                diagnostics=report.errors,
            )
        return report

    def require_clusters(self) -> None:
        """Raise NotImplementedError if the target's provider only validates and plans."""
        if not getattr(self.provider, "builds_clusters", True):
            raise NotImplementedError(
                f"target {self.target!r}: provider {self.provider.name!r} validates and plans, "
                "but cannot build clusters in this version; use a local or slurm target"
            )
