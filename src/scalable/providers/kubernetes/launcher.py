"""Launcher of pods. A unit is one object that creates one pod with one worker."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalable.containers import ADVICE
from scalable.errors import ProviderError
from scalable.files import read_private
from scalable.manager.launcher import LimitReachedError, Observation, UnitName, UnitState
from scalable.manager.pools import ManagerSite, Pool
from scalable.model import DeploymentSpec
from scalable.providers.kubernetes import render
from scalable.providers.kubernetes.api import (
    NOT_FOUND,
    KubernetesApi,
    KubernetesError,
    PodWatch,
    Resource,
)
from scalable.providers.kubernetes.form import Form, PodForm, form_of
from scalable.providers.kubernetes.place import watch_of
from scalable.providers.kubernetes.reasons import fault_in_output, lost_node, observation
from scalable.providers.kubernetes.render import CONTAINER, GRACE_S, TAG, UNIT, selector, to_body
from scalable.providers.remote.workers import pool_of, worker_config
from scalable.records import ClusterDirectory
from scalable.records.packing import PLACE

logger = logging.getLogger("scalable.providers.kubernetes")

STOP_TIMEOUT_S = 90.0
#: Grace period in seconds of a pod that does not run; 0 would not wait for its node.
AT_ONCE_S = 1
#: Seconds that pods may take to stop before the API server is asked about them.
ASK_S = 10.0
LOG_LINES, LOG_BYTES = "100", str(2**20)
Pod = Mapping[str, Any]


class PodLauncher:
    """Launcher of pods, or of objects that create one pod, with one watch for all its pods."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        labels: Mapping[str, str],
        render: Callable[[str, str], dict[str, Any]],
        form: Form | None = None,
    ) -> None:
        #: Called when a unit has ended.
        self.on_change: Callable[[], object] = lambda: None
        self._api = api
        self._form = form or PodForm()
        self._pods = Resource("pods", namespace)
        self._objects = Resource(self._form.unit_kind.plural, namespace, self._form.unit_kind.group)
        self._labels = dict(labels)
        self._render = render
        self._watch: PodWatch | None = None
        # Names of the objects of units that were launched and not stopped.
        self._names: dict[UnitName, str] = {}
        # The last state of each object's first pod, and the uids of all its existing pods.
        self._last: dict[str, Pod] = {}
        self._present: dict[str, set[str]] = {}
        # Names of objects whose first pod is gone.
        self._gone: set[str] = set()
        self._all_ends = False

    def follow(self, watch: PodWatch) -> None:
        """Follow the pods through a watch that calls :meth:`noted`."""
        self._watch = watch

    def all_ends(self) -> None:
        """Make :meth:`stop` delete nothing, since the owner of all pods will be deleted."""
        self._all_ends = True

    def noted(self, pod: Pod, gone: bool) -> None:
        marks = pod["metadata"].get("labels") or {}
        if any(marks.get(key) != value for key, value in self._labels.items()):
            return
        name, uid = self._form.object_of(pod), pod["metadata"].get("uid", "")
        present = self._present.setdefault(name, set())
        if gone:
            present.discard(uid)
        else:
            present.add(uid)
        before = self._last.get(name)
        had_ended = before is not None and self._observation(name).state is UnitState.ENDED
        first = self._last[name] = self._form.first_life(before, pod)
        if gone and first["metadata"].get("uid", "") == uid:
            self._gone.add(name)
        if not had_ended and self._observation(name).state is UnitState.ENDED:
            self.on_change()

    # The Launcher protocol ----------------------------------------------------------------------

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        new = {unit: entry for unit, entry in entries.items() if unit not in self._names}
        bodies = {}
        for unit, entry in new.items():
            thing = self._render(entry["pool"], str(unit))
            bodies[unit] = to_body(thing)
            self._names[unit] = thing["metadata"]["name"]
        creating = [self._api.create(self._objects, body) for body in bodies.values()]
        answers = await asyncio.gather(*creating, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if not errors:
            return
        limit = next((error for error in errors if isinstance(error, LimitReachedError)), None)
        if limit is None:
            raise errors[0]
        # All or none: created objects are deleted, because a smaller request follows.
        made = [
            unit
            for unit, answer in zip(bodies, answers, strict=True)
            if not isinstance(answer, LimitReachedError)
        ]
        await self._delete(made)
        for unit in new:
            self._names.pop(unit, None)
        raise limit

    async def adopt(self) -> dict[UnitName, str]:
        """Take over this manager's existing objects: the watched pods, or the worker groups."""
        adopted: dict[UnitName, str] = {}
        if not self._form.ends_with_pod:
            query = {"labelSelector": selector(self._labels)}
            answer = await self._api.request("GET", self._objects, query=query)
            for thing in answer["items"]:
                notes = thing["metadata"].get("annotations") or {}
                unit, tag = notes.get(UNIT), notes.get(TAG)
                if unit and tag and "deletionTimestamp" not in thing["metadata"]:
                    self._names.setdefault(unit, thing["metadata"]["name"])
                    adopted[unit] = tag
            return adopted
        for name, pod in self._last.items():
            notes = pod["metadata"].get("annotations") or {}
            unit, tag = notes.get(UNIT), notes.get(TAG)
            if unit is None or tag is None or unit in self._names or name in self._gone:
                continue
            if observation(pod).state is not UnitState.ENDED:
                self._names[unit] = name
                adopted[unit] = tag
        return adopted

    def observe(self) -> dict[UnitName, Observation]:
        return {unit: self._observation(name) for unit, name in list(self._names.items())}

    def _observation(self, name: str) -> Observation:
        pod = self._last.get(name)
        if pod is None:
            return Observation(UnitState.PENDING, self._form.unmade)
        return observation(pod, gone=name in self._gone)

    def look_soon(self) -> None:
        """Do nothing, since the watch reports each change immediately."""

    async def stop(self, names: Sequence[UnitName]) -> None:
        """Delete the objects of units, and wait until their pods are gone."""
        units = [unit for unit in names if unit in self._names]
        if not self._all_ends:
            await self._delete(units)
        for unit in units:
            name = self._names.pop(unit, None)
            if name is not None:
                self._last.pop(name, None)
                self._present.pop(name, None)
                self._gone.discard(name)

    async def _delete(self, units: Sequence[UnitName]) -> None:
        names = [self._names[unit] for unit in units]
        left = [n for n in names if n not in self._gone or not self._form.ends_with_pod]
        there = await asyncio.gather(
            *(self._api.delete(self._objects, name, **self._deletion(name)) for name in left)
        )
        remaining = {name for name, was_there in zip(left, there, strict=True) if was_there}
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while remaining := {name for name in remaining if not self._is_over(name)}:
            if time.monotonic() > deadline:
                shown = ", ".join(sorted(remaining))
                raise ProviderError(
                    f"{self._objects.name} {shown} were deleted but have not stopped after "
                    f"{STOP_TIMEOUT_S:g} s"
                )
            await self._changed()
            if time.monotonic() > deadline - STOP_TIMEOUT_S + ASK_S:
                remaining = {name for name in remaining if await self._exists(name)}

    def _deletion(self, name: str) -> dict[str, Any]:
        """Return ``DeleteOptions`` fields, with a minimal grace period unless the pod runs."""
        options = dict(self._form.deletion)
        if "gracePeriodSeconds" in options:
            runs = self._observation(name).state is UnitState.RUNNING
            options["gracePeriodSeconds"] = GRACE_S if runs else AT_ONCE_S
        return options

    def _is_over(self, name: str) -> bool:
        """Return whether all pods of a deleted object are gone, or their node does not answer."""
        gone = name in self._gone and not self._present.get(name)
        return gone or (name in self._last and lost_node(self._last[name]) is not None)

    async def _changed(self) -> None:
        if self._watch is None:
            await asyncio.sleep(ASK_S)
        else:
            await self._watch.changed(ASK_S)

    async def _exists(self, name: str) -> bool:
        try:
            await self._api.request("GET", self._objects, name)
        except KubernetesError as error:
            if error.status != NOT_FOUND:
                raise
            return False
        return True

    async def logs(self, name: UnitName) -> str:
        known = self._names.get(name)
        first = None if known is None or known in self._gone else self._last.get(known)
        if first is None:
            return ""
        pod = str(first["metadata"]["name"])
        query = {"container": CONTAINER, "tailLines": LOG_LINES, "limitBytes": LOG_BYTES}
        if self._form.starts_again and observation(first).state is UnitState.ENDED:
            query["previous"] = "true"
        try:
            text = str(await self._api.request("GET", self._pods, pod, "log", query=query))
            fault = fault_in_output(first, text)
            return text if fault is None else f"{text.rstrip()}\n{fault}: {ADVICE}\n"
        except KubernetesError as error:
            # The container has not started, or the pod is gone.
            if error.status in (400, NOT_FOUND):
                return ""
            raise


# Pools --------------------------------------------------------------------------------------------


def pools(spec: DeploymentSpec, site: ManagerSite) -> list[Pool]:
    """Return the pools of a manager, as :meth:`.ClusterLifecycle.pools` does."""
    cluster = ClusterDirectory(site.directory.parent.parent)
    frame = stored_frame(cluster, site.manager, spec.options)
    record = cluster.record()
    # A manager in a pod may not create Secrets: its starter has created them.
    secrets = worker_secrets(frame, spec, site.security, site.secrets) if record.remote else []
    launcher = ManagedPods(KubernetesApi(record.place["context"] or None), frame, spec, secrets)
    return [pool_of(component, launcher, spec) for component in spec.components.values()]


class ManagedPods(PodLauncher):
    """Launcher of one manager's pods, which outlive its process. It creates ``secrets`` first."""

    def __init__(
        self,
        api: KubernetesApi,
        frame: render.Frame,
        spec: DeploymentSpec,
        secrets: Sequence[render.Object] = (),
    ) -> None:
        form = form_of(spec.options)
        super().__init__(
            api,
            frame.namespace,
            render.worker_selector(frame),
            lambda tag, unit: form.unit(frame, spec.components[tag], unit),
            form,
        )
        self._secrets = secrets
        self._pods_watch = watch_of(api, frame, self.noted)
        self.follow(self._pods_watch)

    async def adopt(self) -> dict[UnitName, str]:
        """Start the watch, and take over the pods of an earlier process."""
        for secret in self._secrets:
            resource = Resource("secrets", secret["metadata"]["namespace"])
            await self._api.create(resource, render.to_body(secret))
        await self._pods_watch.start()
        return await super().adopt()

    async def close(self) -> None:
        await self._pods_watch.close()
        await self._api.close()


def worker_secrets(
    frame: render.Frame,
    spec: DeploymentSpec,
    security: Any,
    values: Mapping[str, Mapping[str, str]] | None = None,
) -> list[render.Object]:
    """Return the Secrets of a manager's workers, with ``values`` as in ManagerSite.secrets."""
    scheduler = render.service_address(frame.cluster_id, frame.namespace)
    once = form_of(spec.options).starts_again
    return [
        render.worker_secret(
            frame,
            c.name,
            worker_config(c, scheduler, security, frame.manager, once=once, secrets=values),
        )
        for c in spec.components.values()
    ]


# Facts about the objects --------------------------------------------------------------------------


def facts_of(frame: render.Frame) -> dict[str, Any]:
    """Return the facts about a cluster's objects that its manager stores, as JSON values."""
    facts = {field: getattr(frame, field) for field in _FACTS}
    return {**facts, "template": dict(frame.template)}


_FACTS = ("cluster_id", "root_uid", "root_name", "owner")


def stored_frame(
    cluster: ClusterDirectory, manager: str, options: Mapping[str, Any]
) -> render.Frame:
    """Return the facts about a manager's objects. ProviderError if they are in another backend."""
    try:
        facts = json.loads(read_private(cluster.path / PLACE))
        frame = render.Frame(manager=manager, options=options, **facts)
    except FileNotFoundError as error:
        raise ProviderError(
            f"cluster {cluster.id} does not run in Kubernetes: pods cannot join it in this version"
        ) from error
    except (ValueError, TypeError) as error:
        raise ProviderError(f"{cluster.path / PLACE} cannot be read: {error}") from error
    return dataclasses.replace(frame, template=frame.template or {})
