"""Clusters of one namespace, for any process with access to it, and tunnels to them."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from scalable.client.tunnel import BackgroundTunnel, Tunnel, TunnelClosedError
from scalable.errors import ClusterError, ProviderError, ScalableError
from scalable.files import read_private
from scalable.manager.launcher import UnitState
from scalable.protocol.streams import KEPT_S, RELAY_PORT, Buffer
from scalable.providers.base import ProgramState
from scalable.providers.kubernetes.api import (
    FORBIDDEN,
    MERGE_PATCH,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    KubernetesApi,
    KubernetesError,
    Resource,
    ask,
    refusal,
)
from scalable.providers.kubernetes.form import KEEPER, as_started_once
from scalable.providers.kubernetes.kubeconfig import current_context, inside, user_of
from scalable.providers.kubernetes.permissions import DETACHED_RULES
from scalable.providers.kubernetes.place import (
    BATCH,
    REMOVAL_TIMEOUT_S,
    pod_and_node,
    warn_of_lost_nodes,
    why_no_pod,
)
from scalable.providers.kubernetes.reasons import (
    DELETED,
    fault_in_output,
    lost_node,
    observation,
    phase_of,
)
from scalable.providers.kubernetes.render import (
    CLUSTER,
    CONTAINER,
    MANAGER,
    MANAGING,
    MARGIN_S,
    OWNER,
    ROLE,
    SCHEDULER,
    UNIT,
    label,
    label_value,
    root_name,
    selector,
    service_address,
    to_body,
)
from scalable.records import RECORD, ClusterDirectory
from scalable.records.packing import PLACE, path_of

# Tunnels ------------------------------------------------------------------------------------------

PROTOCOL = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
#: Seconds for the check of a port-forward.
CHECK_S = 10.0
#: Seconds for closing a WebSocket, because a lost network does not answer.
CLOSE_S = 0.5
_DATA_CHANNEL = bytes((DATA,))
#: Number of bytes at the start of each channel that contain the port.
_PORT_LENGTH = struct.calcsize("<H")


class WebSocketCarrier:
    """Carrier (connection of a tunnel) through the API server, over aiohttp's WebSocket."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._begun: set[int] = set()

    async def send(self, pieces: Sequence[Buffer]) -> None:
        import aiohttp

        try:
            await self._connection.send_bytes(b"".join((_DATA_CHANNEL, *pieces)))
        except (aiohttp.ClientError, RuntimeError) as error:  # aiohttp's, of a closed connection
            raise ConnectionError(str(error)) from error

    async def receive(self) -> Buffer:
        """Return the next bytes. They are empty once the connection is closed."""
        import aiohttp

        while True:
            message = await self._connection.receive()
            if message.type is aiohttp.WSMsgType.ERROR:
                raise ConnectionError(str(message.data))
            if message.type is not aiohttp.WSMsgType.BINARY:
                if self._connection.closed:
                    return b""
                continue
            data = memoryview(message.data)
            if not data:
                continue
            channel, data = data[0], data[1:]
            if channel not in self._begun:
                self._begun.add(channel)
                data = data[_PORT_LENGTH:]
            if channel == ERROR and data:
                words = bytes(data).decode(errors="replace").strip()
                refused = "refused" in words.lower()
                raise (ConnectionRefusedError if refused else ConnectionError)(words)
            if channel == DATA and data:
                return data

    async def close(self) -> None:
        """Close the WebSocket, without waiting long for the API server's answer."""
        import aiohttp

        with suppress(aiohttp.ClientError, OSError):
            async with asyncio.timeout(CLOSE_S):
                await self._connection.close()


class PodDial:
    """Opens carriers (connections of a tunnel) to a port of a pod."""

    def __init__(self, api: KubernetesApi, namespace: str, pod: str, port: int) -> None:
        self._api = api
        self._pods, self._pod = Resource("pods", namespace), pod
        self._path = self._pods.path(pod, "portforward")
        self._query = {"ports": str(port)}

    async def __call__(self) -> WebSocketCarrier:
        """Open a carrier.
        Raises OSError or ProviderError if the API server does not answer or refuses, and
        TunnelClosedError if the pod has stopped or is gone.
        """
        import aiohttp

        try:
            connection = await self._api.websocket(self._path, self._query, PROTOCOL)
        except aiohttp.WSServerHandshakeError as error:
            await self._check_pod()
            if error.status == FORBIDDEN:
                await self._explain()
            raise refusal(
                error.status,
                f"the API server answered {error.status} to a port-forward (get pods/portforward)"
                f" in namespace {self._pods.namespace!r}: {error.message}",
            ) from error
        except (aiohttp.ClientError, ProviderError) as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        return WebSocketCarrier(connection)

    async def _explain(self) -> None:
        """Repeat a refused port-forward as a plain request, which raises the server's error."""
        try:
            await self._api.request("GET", self._pods, self._pod, "portforward", query=self._query)
        except KubernetesError as error:
            if error.status == FORBIDDEN:
                raise

    async def check(self) -> None:
        """Raise ProviderError if the API server permanently refuses port-forwards."""
        try:
            async with asyncio.timeout(CHECK_S):
                carrier = await self()
        except KubernetesError as error:
            if error.status in (FORBIDDEN, NOT_ACCEPTABLE):
                raise
            logger.debug("could not open a port-forward to pod %s: %s", self._pod, error)
        except (OSError, ScalableError) as error:
            logger.debug("could not open a port-forward to pod %s: %s", self._pod, error)
        else:
            await carrier.close()

    async def _check_pod(self) -> None:
        """Raise TunnelClosedError if the pod has stopped or is gone."""
        try:
            pod = await self._api.request("GET", self._pods, self._pod)
        except KubernetesError as error:
            if error.status == NOT_FOUND:
                raise TunnelClosedError("the scheduler's pod no longer exists") from error
            raise
        seen = observation(pod)
        if seen.state is UnitState.ENDED:
            raise TunnelClosedError(f"the scheduler's pod has stopped: {seen.reason}")


def tunnel_to(
    context: str | None, namespace: str, pod: str, port: int, *, kept_s: float = KEPT_S
) -> BackgroundTunnel:
    """Return a tunnel to a pod's relay. It survives ``kept_s`` seconds without the API server."""

    def make() -> Tunnel:
        # A separate connection, which belongs to the event loop of the tunnels.
        api = KubernetesApi(context)
        return Tunnel(PodDial(api, namespace, pod, port), hang_up=api.close, kept_s=kept_s)

    return BackgroundTunnel(make)


# Clusters of a namespace --------------------------------------------------------------------------

logger = logging.getLogger("scalable.providers.kubernetes")

ANSWER_TIMEOUT_S = 8.0
LOGS_TIMEOUT_S = 60.0
POLL_S = 0.5
REVIEWS = "authentication.k8s.io/v1"
#: More than a program writes in a second, which is the resolution of ``sinceTime``.
MOST_LOG_BYTES = 2**26
#: Number of lines that are searched for the reason of a failure.
LAST_LINES = "20"

Thing = Mapping[str, Any]


class KubernetesPlace:
    """Clusters of one user in one namespace (a :class:`.RemotePlace`)."""

    def __init__(self, place: Mapping[str, str]) -> None:
        #: Name of the context; empty for the current context, or the pod's own.
        self._context = place.get("context", "")
        self._namespace = place["namespace"]
        #: Name of the user in Kubernetes; empty until it is requested.
        self._owner = place.get("owner", "")
        self._jobs = Resource("jobs", self._namespace, BATCH)
        self._pods = Resource("pods", self._namespace)

    def clusters(self) -> dict[str, dict[str, str]]:
        return ask(self._context, self._clusters, ANSWER_TIMEOUT_S)

    async def _clusters(self, api: KubernetesApi) -> dict[str, dict[str, str]]:
        own = {OWNER: await self.owner_label(api)}
        jobs, secrets = await asyncio.gather(
            self._list(api, self._jobs, {ROLE: SCHEDULER, **own}),
            self._list(api, Resource("secrets", self._namespace), own),
        )
        jobs = [job for job in jobs if not is_going(job)]
        over = [job for job in jobs if has_completed(job)]
        failed = []
        if any(map(is_kept, over)):  # a keeper exits in the same way, however its scheduler ended
            pods = await self._list(api, self._pods, {ROLE: SCHEDULER, **own})
            failed = [job for job in over if state_of(job, pods).state == "failed"]
        living = {
            str(job["metadata"]["uid"]): job for job in jobs if job not in over or job in failed
        }
        found: dict[str, dict[str, str]] = {}
        for secret in sorted(secrets, key=lambda thing: label(thing, ROLE), reverse=True):
            root = next((living[uid] for uid in owners(secret) if uid in living), None)
            known = root is not None and label(root, CLUSTER) == label(secret, CLUSTER)
            if known and label(secret, ROLE) in (SCHEDULER, MANAGING):
                # The scheduler's files come first, and those of managers do not replace them.
                its = found.setdefault(label(secret, CLUSTER), {})
                for path, text in _texts(secret).items():
                    its.setdefault(path, text)
        return {
            cluster_id: files
            for cluster_id, files in found.items()
            if any(_is_root(job, cluster_id, files, self._owner) for job in living.values())
        }

    async def owner_label(self, api: KubernetesApi) -> str:
        self._owner = self._owner or await owner(api, self._context)
        return label_value(self._owner)

    async def _list(
        self, api: KubernetesApi, resource: Resource, marks: Mapping[str, str]
    ) -> list[Thing]:
        answer = await api.request("GET", resource, query={"labelSelector": selector(marks)})
        return list(answer.get("items") or ())

    async def _root(self, api: KubernetesApi, cluster_id: str) -> Thing | None:
        marks = {CLUSTER: cluster_id, ROLE: SCHEDULER, OWNER: await self.owner_label(api)}
        jobs = await self._list(api, self._jobs, marks)
        uid = _known_root(cluster_id)
        return next((job for job in jobs if uid in (None, job["metadata"]["uid"])), None)

    # State ----------------------------------------------------------------------------------------

    def programs(self, cluster_id: str) -> dict[str, ProgramState]:
        return ask(self._context, lambda api: self._programs(api, cluster_id), ANSWER_TIMEOUT_S)

    async def _programs(self, api: KubernetesApi, cluster_id: str) -> dict[str, ProgramState]:
        jobs, pods = await asyncio.gather(
            self._list(api, self._jobs, {CLUSTER: cluster_id}),
            self._list(api, self._pods, {CLUSTER: cluster_id}),
        )
        found: dict[str, ProgramState] = {}
        uid = _known_root(cluster_id)
        jobs = [j for j in jobs if uid is None or uid in (j["metadata"]["uid"], *owners(j))]
        for job in sorted(jobs, key=made_at):
            if label(job, ROLE) in (SCHEDULER, MANAGING) and not is_going(job):
                found[_program(job)] = state_of(job, pods)
        scheduler = found.get(SCHEDULER)
        if scheduler is not None and scheduler.state == "failed":
            found[SCHEDULER] = await self._with_reason(api, scheduler, pods)
        for job in jobs:
            its = found.get(_program(job))
            if (
                its is None
                or its.state == "completed"
                or any(job["metadata"]["uid"] in owners(pod) for pod in pods)
            ):
                continue
            if refusal := await why_no_pod(api, job):
                why, lasting = refusal
                words = f"{its.reason}: {why}" if its.reason else why
                state = its.state if lasting is None else "failed"
                found[_program(job)] = ProgramState(state, words)
        return found if scheduler is not None else {}

    async def _with_reason(
        self, api: KubernetesApi, state: ProgramState, pods: list[Thing]
    ) -> ProgramState:
        """Return the state of a failed scheduler, with the reason that its output contains."""
        own = [pod for pod in pods if label(pod, ROLE) == SCHEDULER]
        for pod in sorted(own, key=made_at, reverse=True):
            try:
                text = await self._request_log(api, pod, {"tailLines": LAST_LINES})
            except ProviderError as error:
                logger.debug("the output of the scheduler cannot be read: %s", error)
                continue
            last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
            why = fault_in_output(pod, f"{state.reason}\n{text}") or last.strip()
            if why:
                return ProgramState("failed", f"{state.reason}: {why:.300}")
        return state

    # Access ---------------------------------------------------------------------------------------

    def address(self, cluster_id: str) -> str | None:
        if self._context or not inside():
            return None
        return service_address(cluster_id, self._namespace)

    def outer_address(self, cluster_id: str) -> None:
        """Return None, since a Service cannot be reached from outside."""

    def tunnel(self, cluster_id: str) -> PodTunnel:
        return PodTunnel(self, self._context, self._namespace, cluster_id)

    async def scheduler_pod(self, api: KubernetesApi, cluster_id: str) -> str:
        """Return the name of the scheduler's pod. Raises ProviderError if it is not running."""
        for pod in await self._list(api, self._pods, {CLUSTER: cluster_id, ROLE: SCHEDULER}):
            if observation(pod).state is UnitState.RUNNING and not is_going(pod):
                return str(pod["metadata"]["name"])
        raise ProviderError(
            f"the scheduler's pod of cluster {cluster_id} is not running", transient=True
        )

    def logs(self, cluster_id: str, since: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        return ask(self._context, lambda api: self._logs(api, cluster_id, since), LOGS_TIMEOUT_S)

    async def _logs(
        self, api: KubernetesApi, cluster_id: str, since: Mapping[str, str]
    ) -> dict[str, tuple[str, str]]:
        pods = await self._list(api, self._pods, {CLUSTER: cluster_id})
        named = [(_log_name(pod), pod) for pod in sorted(pods, key=made_at)]
        read = await asyncio.gather(
            *(self._log(api, pod, since.get(name, "")) for name, pod in named)
        )
        found: dict[str, tuple[str, str]] = {}
        for (name, _), (text, mark) in zip(named, read, strict=True):
            if mark:
                found[name] = (found.get(name, ("", ""))[0] + text, mark)
        return found

    async def _log(self, api: KubernetesApi, pod: Thing, mark: str) -> tuple[str, str]:
        query = {"timestamps": "true", "limitBytes": str(MOST_LOG_BYTES)}
        text = await self._request_log(api, pod, query | ({"sinceTime": mark} if mark else {}))
        # The server's resolution is a second: lines of the same second are sent twice.
        whole = text if len(text) < MOST_LOG_BYTES // 2 else text[: text.rfind("\n") + 1]
        lines = (line.partition(" ") for line in whole.splitlines(keepends=True))
        new = [(moment, rest) for moment, _, rest in lines if moment > mark]
        return "".join(rest for _, rest in new), new[-1][0] if new else ""

    async def _request_log(self, api: KubernetesApi, pod: Thing, query: Mapping[str, str]) -> str:
        """Return a pod's output, or an empty string if it has not started or is gone."""
        asked = {"container": CONTAINER, **query}
        name = pod["metadata"]["name"]
        try:
            return str(await api.request("GET", self._pods, name, "log", query=asked))
        except KubernetesError as error:
            if error.status in (400, NOT_FOUND):
                return ""
            raise

    # Changes --------------------------------------------------------------------------------------

    def keep(self, cluster_id: str, seconds: float | None) -> None:
        deadline = None if seconds is None else int(seconds + MARGIN_S)
        body = json.dumps({"spec": {"activeDeadlineSeconds": deadline}}).encode()

        async def patch(api: KubernetesApi) -> None:
            root = await self._root(api, cluster_id)
            if root is not None:
                name = root["metadata"]["name"]
                await api.request("PATCH", self._jobs, name, body=body, content=MERGE_PATCH)

        ask(self._context, patch, ANSWER_TIMEOUT_S * 2)

    def delete(self, cluster_id: str, *, wait: bool = True) -> list[str]:
        return ask(
            self._context,
            lambda api: self._delete(api, cluster_id, wait=wait),
            REMOVAL_TIMEOUT_S + POLL_S,
        )

    async def _delete(self, api: KubernetesApi, cluster_id: str, *, wait: bool) -> list[str]:
        try:
            root = await asyncio.wait_for(self._root(api, cluster_id), ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            raise ProviderError(
                f"the API server has not answered within {ANSWER_TIMEOUT_S:g} s", transient=True
            ) from error
        if root is None:
            return []
        name = root["metadata"]["name"]
        await api.delete(self._jobs, name, propagationPolicy="Foreground")
        deadline = time.monotonic() + REMOVAL_TIMEOUT_S - POLL_S
        while wait and (left := await self._left(api, cluster_id)):
            if time.monotonic() > deadline:
                raise ProviderError(
                    f"job {name} was deleted, but {', '.join(left)} have not stopped after "
                    f"{REMOVAL_TIMEOUT_S:g} s",
                    hint=f"kubectl --namespace {self._namespace} get job,pod "
                    f"--selector {CLUSTER}={cluster_id}",
                )
            await asyncio.sleep(POLL_S)
        if wait:
            warn_of_lost_nodes(await self._list(api, self._pods, {CLUSTER: cluster_id}))
        return [f"job {name} in namespace {self._namespace}, with everything that it owns"]

    async def _left(self, api: KubernetesApi, cluster_id: str) -> list[str]:
        jobs, pods = await asyncio.gather(
            *(self._list(api, kind, {CLUSTER: cluster_id}) for kind in (self._jobs, self._pods))
        )
        # Jobs stay until the pods on lost nodes are gone.
        left = [pod_and_node(pod) for pod in pods if lost_node(pod) is None]
        return left or ([] if pods else [job["metadata"]["name"] for job in jobs])


class PodTunnel:
    """Tunnel to one cluster's scheduler. ``open`` looks up its pod."""

    def __init__(
        self, place: KubernetesPlace, context: str, namespace: str, cluster_id: str
    ) -> None:
        self._place, self._namespace, self._cluster_id = place, namespace, cluster_id
        self._api = KubernetesApi(context or None, rules=DETACHED_RULES)
        self._tunnel: Tunnel | None = None

    async def open(self) -> int:
        try:
            pod = await self._place.scheduler_pod(self._api, self._cluster_id)
            dial = PodDial(self._api, self._namespace, pod, RELAY_PORT)
            await dial.check()
        except BaseException:
            await self._api.close()
            raise
        subject = f"the scheduler of cluster {self._cluster_id}"
        self._tunnel = Tunnel(dial, subject)
        return await self._tunnel.open()

    async def close(self) -> None:
        if self._tunnel is not None:
            await self._tunnel.close()
        await self._api.close()


async def owner(api: KubernetesApi, context: str) -> str:
    """Return the user's name in Kubernetes, or in the kubeconfig for servers before 1.28."""
    body = to_body({"apiVersion": REVIEWS, "kind": "SelfSubjectReview"})
    try:
        said = await api.request("POST", Resource("selfsubjectreviews", "", REVIEWS), body=body)
    except KubernetesError as error:
        if error.status != NOT_FOUND:
            raise
        return user_of(context or current_context())
    return str(said["status"]["userInfo"]["username"])


def _program(thing: Thing) -> str:
    return SCHEDULER if label(thing, ROLE) == SCHEDULER else label(thing, MANAGER)


def _texts(secret: Thing) -> dict[str, str]:
    """Return the files in a Secret, or none if one of them is not UTF-8."""
    coded = (secret.get("data") or {}).items()
    try:
        return {path_of(key): base64.b64decode(text).decode() for key, text in coded}
    except ValueError as error:
        logger.warning("secret %s is left out: %s", secret["metadata"]["name"], error)
        return {}


def _is_root(job: Thing, cluster_id: str, files: Mapping[str, str], owner: str) -> bool:
    """Return whether a Job is the root object recorded in a cluster's files."""
    try:
        facts, name = json.loads(files[PLACE]), json.loads(files[RECORD])["name"]
        named = (job["metadata"]["name"], job["metadata"]["uid"], label(job, CLUSTER))
        return named == (root_name(owner, str(name)), facts["root_uid"], cluster_id)
    except (KeyError, ValueError, TypeError):
        return False


def _known_root(cluster_id: str) -> str | None:
    """Return the uid of a cluster's root object from its local files, or None."""
    try:
        text = read_private(ClusterDirectory.parent() / cluster_id / PLACE)
        return str(json.loads(text)["root_uid"])
    except (OSError, ValueError, KeyError, TypeError, ClusterError):
        return None


def _log_name(pod: Thing) -> str:
    role = label(pod, ROLE)
    if role == SCHEDULER:
        return SCHEDULER
    if role == MANAGING:
        return f"manager-{label(pod, MANAGER)}"
    return str((pod["metadata"].get("annotations") or {}).get(UNIT) or pod["metadata"]["name"])


# Job states ---------------------------------------------------------------------------------------


def made_at(thing: Thing) -> str:
    """Return an object's creation time in a sortable form."""
    return str(thing["metadata"].get("creationTimestamp"))


def is_going(thing: Thing) -> bool:
    """Return whether an object is being deleted."""
    return "deletionTimestamp" in thing["metadata"]


def owners(thing: Thing) -> list[str]:
    """Return the uids of an object's owners."""
    return [str(owner.get("uid")) for owner in thing["metadata"].get("ownerReferences") or ()]


def has_completed(job: Thing) -> bool:
    """Return whether a Job's program has exited with code 0."""
    return _condition(job, "Complete") is not None


def has_ended(job: Thing) -> bool:
    """Return whether a Job has completed or failed, or is being deleted."""
    return has_completed(job) or _condition(job, "Failed") is not None or is_going(job)


def is_kept(job: Thing) -> bool:
    """Return whether the root's pod is a keeper, which only waits for the scheduler's pod."""
    return label(job["spec"]["template"], ROLE) == KEEPER


def state_of(job: Thing, pods: Iterable[Thing]) -> ProgramState:
    """Return the state of a Job's program, given the Job and all pods that may be its own."""
    if is_kept(job):
        own = (CLUSTER, label(job, CLUSTER)), (ROLE, SCHEDULER)
        found = [pod for pod in pods if all(label(pod, key) == text for key, text in own)]
        return _kept_state(job, found)
    return _own_state(job, [pod for pod in pods if job["metadata"]["uid"] in owners(pod)])


def _kept_state(job: Thing, pods: list[Thing]) -> ProgramState:
    """Return the state of a scheduler that Kubernetes may restart. Only its first run counts."""
    failed = _condition(job, "Failed")
    if failed is not None:
        return ProgramState("failed", f"{failed.get('reason')}: {failed.get('message')}")
    pod = min(pods, key=made_at, default=None)
    if pod is None:
        if has_completed(job):
            return ProgramState("failed", "the scheduler's pod no longer exists")
        return ProgramState("pending", "the Dask operator has not created its pod yet")
    first = as_started_once(pod)
    seen = observation(first)
    if seen.state is UnitState.ENDED:
        succeeded = first.get("status", {}).get("phase") == "Succeeded"
        return ProgramState("completed" if succeeded else "failed", seen.reason)
    if has_completed(job):
        return ProgramState("failed", "the scheduler's pod was lost, and its tasks with it")
    return ProgramState("running" if seen.state is UnitState.RUNNING else "pending", seen.reason)


def _own_state(job: Thing, pods: list[Thing]) -> ProgramState:
    if has_completed(job):
        return ProgramState("completed")
    latest = max(pods, key=made_at, default=None)
    seen = None if latest is None else observation(latest)
    failed = _condition(job, "Failed")
    if failed is not None:
        why = seen.reason if seen is not None and seen.state is UnitState.ENDED else None
        if latest is None and failed.get("reason") == "BackoffLimitExceeded":
            # The pods of a failed Job stay until somebody or a lost node deletes them.
            why = f"{DELETED} ({failed.get('message')})"
        return ProgramState("failed", why or f"{failed.get('reason')}: {failed.get('message')}")
    if seen is None or seen.state is UnitState.PENDING:
        return ProgramState("pending", None if seen is None else seen.reason)
    if seen.state is UnitState.ENDED:
        assert latest is not None
        succeeded = phase_of(latest) == "Succeeded"
        # A manager is restarted, but only when all containers of its pod have ended.
        last = label(job, ROLE) == SCHEDULER or latest["status"].get("phase") == "Running"
        state = "completed" if succeeded else "failed" if last else "pending"
        return ProgramState(state, seen.reason)
    return ProgramState("running")


def _condition(job: Thing, kind: str) -> Thing | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if (c["type"], c["status"]) == (kind, "True")), None)
