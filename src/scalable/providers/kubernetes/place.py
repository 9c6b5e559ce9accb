"""Creation and removal of one cluster's objects in Kubernetes."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from scalable.containers import ADVICE
from scalable.errors import ProviderError
from scalable.manager.launcher import LimitReachedError, UnitState
from scalable.providers.kubernetes import render
from scalable.providers.kubernetes.api import (
    MERGE_PATCH,
    NOT_FOUND,
    KubernetesApi,
    KubernetesError,
    PodWatch,
    RefusedError,
    Resource,
)
from scalable.providers.kubernetes.form import JOBS, Form, kind_of
from scalable.providers.kubernetes.reasons import (
    fault_in_output,
    lasting_refusal,
    lost_node,
    observation,
)
from scalable.providers.kubernetes.render import CLUSTER, ROLE, SCHEDULER, selector
from scalable.records.packing import key_of
from scalable.worker.config import WorkerConfig

logger = logging.getLogger("scalable.providers.kubernetes")

#: Seconds within which the objects of a cluster have to be gone.
REMOVAL_TIMEOUT_S = 90.0
POLL_S = 1.0
BATCH = JOBS.group


class NamespacePlace:
    """The objects of one cluster."""

    def __init__(
        self, api: KubernetesApi, frame: render.Frame, watch: PodWatch, form: Form
    ) -> None:
        self.frame = frame
        self._api = api
        self._watch = watch
        self._form = form
        self._jobs = Resource(JOBS.plural, frame.namespace, JOBS.group)
        self._asked_at = time.monotonic()

    async def create(self, frame_of: Any, files: Mapping[str, str], start_s: float) -> None:
        """Create the root object, the Secret and the other objects of the scheduler.
        ``frame_of(uid)`` returns the frame with the root's uid. Until the cluster is up, the root's
        deadline is ``start_s`` seconds and a margin, so that a dying creator leaves nothing.
        """
        job = self._form.root(self.frame, int(start_s + render.MARGIN_S))
        made = await self._api.create_root(self._jobs, render.to_body(job))
        self.frame = frame_of(made["metadata"]["uid"])
        keys = {key_of(path): text for path, text in files.items()}
        name = render.scheduler_secret_name(self.frame)
        await asyncio.gather(
            self.add(render.secret(self.frame, name, SCHEDULER, keys)),
            *(self.add(thing) for thing in self._form.scheduler(self.frame)),
        )

    async def add(self, thing: render.Object) -> None:
        """Create an object. Raises ProviderError if its kind is unknown or it is refused."""
        await create(self._api, thing, self._form)

    async def add_workers(self, tag: str, config: WorkerConfig) -> None:
        """Create the Secret of a tag's workers."""
        await self.add(render.worker_secret(self.frame, tag, config))

    async def limit_life(self, seconds: float | None) -> None:
        """Set the root object's deadline to the cluster's time to live, or remove it for None."""
        deadline = None if seconds is None else int(seconds + render.MARGIN_S)
        body = json.dumps({"spec": {"activeDeadlineSeconds": deadline}}).encode()
        await self._api.request(
            "PATCH", self._jobs, self.frame.root, body=body, content=MERGE_PATCH
        )

    async def scheduler_pod(self, timeout_s: float) -> Mapping[str, Any]:
        """Wait for the scheduler's pod to run, or raise ProviderError with the reason."""
        deadline = time.monotonic() + timeout_s
        words: str | None = self._form.unmade
        told: str | None = None
        while time.monotonic() < deadline:
            pod = self._scheduler()
            if pod is not None:
                seen = observation(self._form.first_life(None, pod))
                words = seen.reason
                if seen.state is UnitState.RUNNING and pod["status"].get("podIP"):
                    return pod
                if seen.state is UnitState.ENDED:
                    output = await self.logs(pod["metadata"]["name"])
                    fault = fault_in_output(pod, f"{words}{output}")
                    said = f"{fault}: {words}" if fault and fault not in str(words) else words
                    raise ProviderError(
                        f"the scheduler's pod is not running: {said}{output}",
                        hint=ADVICE if fault else None,
                    )
                if words != told and words is not None and ":" in words:
                    logger.warning("the scheduler's pod waits: %s", words)
                    told = words
            elif refusal := await self._refusal():
                words, lasting = refusal
                if lasting is not None:
                    raise ProviderError(
                        f"the scheduler's pod is not running: {words}", hint=lasting
                    )
                if words != told:
                    logger.warning("the scheduler's pod waits: %s", words)
                    told = words
            await self._watch.changed(POLL_S)
        raise ProviderError(
            f"the scheduler's pod is not running after {timeout_s:g} s: {words}",
            hint="raise start_timeout in the target if it only needs more time",
        )

    def _scheduler(self) -> Mapping[str, Any] | None:
        for pod in self._watch.pods.values():
            if pod["metadata"].get("labels", {}).get(ROLE) == SCHEDULER:
                return pod
        return None

    async def _refusal(self) -> tuple[str, str | None] | None:
        """Return why the scheduler's pod could not be created. See :func:`why_no_pod`."""
        try:
            job = await self._api.request("GET", self._jobs, self.frame.root)
        except KubernetesError as error:
            logger.debug("the root object cannot be read: %s", error)
            return None
        for condition in job.get("status", {}).get("conditions") or ():
            if condition.get("type") in ("Failed", "FailureTarget"):
                return f"{condition.get('reason')}: {condition.get('message')}", None
        return await why_no_pod(self._api, job)

    async def logs(self, pod: str) -> str:
        """Return the last lines of a pod's output with a heading, or an empty string."""
        pods = Resource("pods", self.frame.namespace)
        query = {"container": render.CONTAINER, "tailLines": "10"}
        try:
            text = str(await self._api.request("GET", pods, pod, "log", query=query)).strip()
        except ProviderError as error:
            logger.debug("the output of pod %s cannot be read: %s", pod, error)
            return ""
        return "; its last output:\n  " + "\n  ".join(text.splitlines()) if text else ""

    async def remove(self) -> None:
        """Delete the root object, and wait up to 90 s until all its objects are gone."""
        there = await self._api.delete(self._jobs, self.frame.root, propagationPolicy="Foreground")
        deadline = time.monotonic() + REMOVAL_TIMEOUT_S
        while there:
            there = await self._is_left()
            if there and time.monotonic() > deadline:
                left = ", ".join(map(pod_and_node, self._watch.pods.values())) or "its root"
                raise ProviderError(
                    f"cluster {self.frame.name} was deleted but still exists after "
                    f"{REMOVAL_TIMEOUT_S:g} s: {left}",
                    hint=f"kubectl --namespace {self.frame.namespace} get job,pod "
                    f"--selector {CLUSTER}={self.frame.cluster_id}",
                )
            if there:
                await self._watch.changed(POLL_S)
        warn_of_lost_nodes(self._watch.pods.values())

    async def _is_left(self) -> bool:
        lost = [lost_node(pod) is not None for pod in self._watch.pods.values()]
        if lost:
            return not all(lost)  # the root is left as well until these are gone
        for kind, name in self._form.awaited(self.frame):
            resource = Resource(kind.plural, self.frame.namespace, kind.group)
            try:
                await self._api.request("GET", resource, name)
            except KubernetesError as error:
                if error.status != NOT_FOUND:
                    raise
            else:
                return True
        return False


def resource_of(thing: render.Object) -> Resource:
    """Return the API resource of an object."""
    kind = kind_of(thing)
    return Resource(kind.plural, thing["metadata"]["namespace"], kind.group)


async def create(api: KubernetesApi, thing: render.Object, form: Form) -> None:
    """Create an object. Raises ProviderError if its kind is unknown or it is refused."""
    kind = kind_of(thing)
    try:
        await api.create(resource_of(thing), render.to_body(thing))
    except KubernetesError as error:
        if error.status != NOT_FOUND or kind not in form.custom_kinds:
            raise
        message = f"the cluster does not have {kind.plural} of {kind.group}"
        raise ProviderError(message, hint=form.installation) from error


def watch_of(api: KubernetesApi, frame: render.Frame, on_change: Any) -> PodWatch:
    """Return the watch of all pods of a cluster, with callback ``on_change(pod, gone)``."""
    return PodWatch(api, frame.namespace, selector({CLUSTER: frame.cluster_id}), on_change)


def pod_and_node(pod: Mapping[str, Any]) -> str:
    """Return the names of a pod and its node for messages."""
    return f"{pod['metadata']['name']} on node {pod['spec'].get('nodeName')}"


def warn_of_lost_nodes(pods: Iterable[Mapping[str, Any]]) -> None:
    """Log which deleted pods stay, because their nodes do not answer."""
    for pod in pods:
        if (node := lost_node(pod)) is not None:
            logger.warning(
                "pod %s was deleted, and stays until its node %r answers or is removed",
                pod["metadata"]["name"],
                node,
            )


# Refused pods -------------------------------------------------------------------------------------

_REASON = "FailedCreate"
_PREFIX = "Error creating: "


async def why_no_pod(api: KubernetesApi, job: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """Return why a Job got no pod, with a hint if waiting does not help, or None.
    The reason comes from Events, or from a dry run if the user may not list them.
    """
    namespace, uid = job["metadata"]["namespace"], job["metadata"]["uid"]
    words = await _told_by_events(api, namespace, uid)
    if words is None and isinstance(found := await dry_run(api, render.pod_of(job)), ProviderError):
        words = found.message
    return None if words is None else (words, lasting_refusal(words))


async def dry_run(
    api: KubernetesApi, pod: render.Object
) -> RefusedError | LimitReachedError | render.Object:
    """Return the error with which Kubernetes would refuse a pod now, or the pod that it would make.
    Return ``pod`` itself if there can be no dry run.
    """
    pods = Resource("pods", pod["metadata"]["namespace"])
    try:
        body = render.to_body(pod)
        made: render.Object = await api.request("POST", pods, query={"dryRun": "All"}, body=body)
    except (RefusedError, LimitReachedError) as error:
        return error
    except ProviderError as error:
        logger.debug("could not make a dry run of a pod: %s", error)
        return pod
    return made


async def _told_by_events(api: KubernetesApi, namespace: str, uid: str) -> str | None:
    """Return the reason in Events why a Job got no pod, or None if unknown or not permitted."""
    wanted = {"involvedObject.uid": uid, "reason": _REASON}
    selector = ",".join(f"{key}={value}" for key, value in wanted.items())
    try:
        found = await api.request(
            "GET", Resource("events", namespace), query={"fieldSelector": selector}
        )
    except ProviderError as error:
        logger.debug("the events of job %s cannot be read: %s", uid, error)
        return None
    said = [event for event in found.get("items") or () if event.get("message")]
    if not said:
        return None
    last = max(said, key=lambda event: str(event.get("lastTimestamp") or ""))
    return refusal_in_words(str(last["message"]))


def refusal_in_words(message: str) -> str:
    """Return the message of an Event about a refused pod in plain words."""
    words = message.removeprefix(_PREFIX).strip()
    if "exceeded quota" in words:
        return f"the quota is used up: {words}"
    return f"its pod is refused: {words}"
