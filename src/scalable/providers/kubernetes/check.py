"""Check of a request against a live Kubernetes cluster, without starting anything."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from scalable.errors import ProviderError
from scalable.model import ComponentSpec, DeploymentSpec, Diagnostic, ValidationReport
from scalable.providers.kubernetes.api import (
    FORBIDDEN,
    NOT_FOUND,
    KubernetesApi,
    KubernetesError,
    Resource,
)
from scalable.providers.kubernetes.form import form_of
from scalable.providers.kubernetes.objects import planned_pods
from scalable.providers.kubernetes.permissions import (
    ACCOUNT_KINDS,
    AccessRule,
    detached_rules,
    merged,
    role,
    session_rules,
)
from scalable.providers.kubernetes.place import dry_run
from scalable.providers.kubernetes.render import CONTAINER, parse_mount
from scalable.units import as_written

#: Oldest version that the watch, the Job and the tunnel support.
OLDEST = (1, 24)


def check(spec: DeploymentSpec) -> ValidationReport:
    """Report the parts of a request that a live cluster cannot provide."""
    report = ValidationReport()
    report.extend(asyncio.run(_check(spec)))
    return report


async def _check(spec: DeploymentSpec) -> list[Diagnostic]:
    api = KubernetesApi(spec.options["context"])
    look = _LiveCheck(api, spec)
    try:
        found = [*await look.version(), *await look.namespace()]
        if found:
            return found
        asked = (
            look.kinds(),
            look.permissions(),
            look.quotas(),
            look.nodes(),
            look.claims(),
            look.pods(),
        )
        parts = await asyncio.gather(*asked)
        return [diagnostic for part in parts for diagnostic in part]
    finally:
        await api.close()


class _LiveCheck:
    """Checks of one request against one API server."""

    def __init__(self, api: KubernetesApi, spec: DeploymentSpec) -> None:
        self._api = api
        self._spec = spec
        self._namespace = str(spec.options["namespace"])
        self._form = form_of(spec.options)
        self._target = ("targets", spec.target_name)

    def _bad(
        self, key: str, message: str, hint: str | None = None, *, warns: bool = False
    ) -> Diagnostic:
        path = (*self._target, key)
        return Diagnostic("E_BAD_OPTION", path, message, hint, "warning" if warns else "error")

    async def _list(self, name: str, namespace: str) -> list[Mapping[str, Any]] | None:
        """Return all objects of a kind, or None if the user may not list them."""
        try:
            answer = await self._api.request("GET", Resource(name, namespace))
        except KubernetesError as error:
            if error.status == FORBIDDEN:
                return None
            raise
        return list(answer.get("items", ()))

    async def version(self) -> list[Diagnostic]:
        said = await self._api.request_path("GET", "/version")
        numbers = ["".join(filter(str.isdigit, str(said[key]))) for key in ("major", "minor")]
        version = tuple(int(number or 0) for number in numbers)
        if version >= OLDEST:
            return []
        shown, oldest = (".".join(map(str, v)) for v in (version, OLDEST))
        return [self._bad("context", f"version {shown} of the cluster is older than {oldest}")]

    async def namespace(self) -> list[Diagnostic]:
        try:
            await self._api.request("GET", Resource("namespaces", ""), self._namespace)
        except KubernetesError as error:
            if error.status == NOT_FOUND:
                hint = f"kubectl create namespace {self._namespace}"
                message = f"there is no namespace {self._namespace!r}"
                return [self._bad("namespace", message, hint)]
            if error.status != FORBIDDEN:  # many users may not read namespaces
                raise
        return []

    async def kinds(self) -> list[Diagnostic]:
        """Check that the cluster has the required custom resources."""
        found = []
        for group in {kind.group for kind in self._form.custom_kinds}:
            wanted = {kind.plural for kind in self._form.custom_kinds if kind.group == group}
            try:
                known = await self._api.request_path("GET", f"/apis/{group}")
            except KubernetesError as error:
                if error.status != NOT_FOUND:
                    raise
                known = {}
            missing = wanted - {kind["name"] for kind in known.get("resources", ())}
            if missing:
                message = f"the cluster does not have {', '.join(sorted(missing))} of {group}"
                found.append(self._bad("operator", message, self._form.installation))
        return found

    async def permissions(self) -> list[Diagnostic]:
        """Check all permissions. A missing one that only detached clusters need is a warning."""
        rules, options = self._form.rules, self._spec.options
        now, later = session_rules(rules, options), detached_rules(rules, options)
        asked = _verbs(merged(now, later))
        allowed = await asyncio.gather(*(self._may(*each) for each in asked))
        missing = [each for each, may in zip(asked, allowed, strict=True) if not may]
        if not missing:
            return []
        here = f"in namespace {self._namespace!r}"
        granting = (
            "this Role grants what sessions and detached clusters need; bind it to the user:\n"
            + role(self._namespace, merged(now, later))
        )
        needed = [each for each in missing if each in _verbs(now)]
        if needed:
            message = f"this user may not {_format_verbs(missing)} {here}"
            return [self._bad("namespace", message, granting)]
        message = (
            f"this user may not {_format_verbs(missing)} {here}, which detached clusters need; "
            "sessions do not"
        )
        if any(resource in ACCOUNT_KINDS for _, resource, _ in missing):
            granting = (
                "set manager_service_account to an account, or write manager: here; or " + granting
            )
        return [self._bad("namespace", message, granting, warns=True)]

    async def _may(self, group: str, resource: str, verb: str) -> bool:
        name, _, part = resource.partition("/")
        asked = {
            "namespace": self._namespace,
            "verb": verb,
            "group": group,
            "resource": name,
            **({"subresource": part} if part else {}),
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        reviews = Resource("selfsubjectaccessreviews", "", "authorization.k8s.io/v1")
        answer = await self._api.request("POST", reviews, body=json.dumps(body).encode())
        return bool(answer["status"]["allowed"])

    async def quotas(self) -> list[Diagnostic]:
        """Check that one worker of each component fits the remaining quotas."""
        found = []
        for quota in await self._list("resourcequotas", self._namespace) or ():
            hard = quota.get("status", {}).get("hard") or quota.get("spec", {}).get("hard") or {}
            used = quota.get("status", {}).get("used") or {}
            for tag, component in self._spec.components.items():
                for noun, wanted, keys in _needs(component):
                    for key in keys & hard.keys():
                        left = amount(hard[key]) - amount(used.get(key, "0"))
                        if wanted > left:
                            name = quota["metadata"]["name"]
                            message = (
                                f"quota {name!r} leaves {_format_quantity(noun, left)} of {key}, "
                                f"and one worker of {tag!r} takes {_format_quantity(noun, wanted)}"
                            )
                            path = ("components", tag)
                            found.append(Diagnostic("E_BAD_OPTION", path, message))
        return found

    async def nodes(self) -> list[Diagnostic]:
        """Check that a node is large enough for a worker of each component."""
        nodes = await self._list("nodes", "")
        if nodes is None:
            message = "this user may not list nodes, so their sizes were not compared"
            return [self._bad("namespace", message, warns=True)]
        wanted = self._spec.options["node_selector"].items()
        fitting = [n for n in nodes if wanted <= (n["metadata"].get("labels") or {}).items()]
        if nodes and not fitting:
            return [self._bad("node_selector", "no node has these labels")]
        found = []
        for tag, component in self._spec.components.items():
            for noun, need, keys in _needs(component):
                key = min(keys, key=len)
                most = max(
                    (amount(_room(node).get(key, "0")) for node in fitting), default=math.inf
                )
                if need > most:
                    message = f"{noun} {_format_quantity(noun, need)} exceeds every node"
                    hint = f"the largest node has {_format_quantity(noun, most)}"
                    found.append(
                        Diagnostic("E_BAD_OPTION", ("components", tag, noun), message, hint)
                    )
        return found

    async def claims(self) -> list[Diagnostic]:
        written = [(("targets", self._spec.target_name), self._spec.options["mounts"])]
        written += [(("components", t), c.mounts) for t, c in self._spec.components.items()]
        found = []
        for place, mounts in written:
            for source, path in mounts.items():
                claim = parse_mount(source, path).volume.get("persistentVolumeClaim")
                if claim is not None and not await self._has_claim(claim["claimName"]):
                    message = f"there is no volume claim {claim['claimName']!r}"
                    where = (*place, "mounts", source)
                    found.append(Diagnostic("E_BAD_OPTION", where, message))
        return found

    async def pods(self) -> list[Diagnostic]:
        """Create the pods of the scheduler and of each component in a dry run."""
        found = []
        others: set[str] = set()
        for path, pod in planned_pods(self._spec).items():
            made = await dry_run(self._api, pod)
            if isinstance(made, ProviderError):
                found.append(Diagnostic("E_BAD_OPTION", path, made.message, made.hint))
            else:
                others |= {its["name"] for its in made["spec"]["containers"]} - {CONTAINER}
        if others and self._spec.options["manager"] != "there":
            message = (
                f"the pods also have the container {', '.join(sorted(others))}, which still runs "
                "after ours has exited: if your process is killed, the pods of its session stay"
            )
            hint = (
                "make it an init container with restartPolicy: Always (Kubernetes 1.29), or write "
                "manager: there in the target"
            )
            found.append(self._bad("pod_template", message, hint, warns=True))
        return found

    async def _has_claim(self, name: str) -> bool:
        claims = Resource("persistentvolumeclaims", self._namespace)
        try:
            await self._api.request("GET", claims, name)
        except KubernetesError as error:
            return error.status != NOT_FOUND
        except ProviderError:
            return True
        return True


def _needs(component: ComponentSpec) -> list[tuple[str, float, set[str]]]:
    """Return name, amount and Kubernetes keys of each resource of one worker."""
    needs: list[tuple[str, float, set[str]]] = [("cpus", component.cpus, {"cpu", "requests.cpu"})]
    if component.memory_bytes is not None:
        keys = {"memory", "requests.memory", "limits.memory"}
        needs.append(("memory", component.memory_bytes, keys))
    if component.gpus:
        keys = {"nvidia.com/gpu", "requests.nvidia.com/gpu"}
        needs.append(("gpus", component.gpus, keys))
    return needs


def _room(node: Mapping[str, Any]) -> Mapping[str, str]:
    status = node.get("status", {})
    room: Mapping[str, str] = status.get("allocatable") or status.get("capacity") or {}
    return room


def _format_quantity(noun: str, number: float) -> str:
    return (
        as_written(round(number)) if noun == "memory" and math.isfinite(number) else f"{number:g}"
    )


_Verb = tuple[str, str, str]


def _verbs(rules: Iterable[AccessRule]) -> list[_Verb]:
    """Return (group, resource, API verb) of each permission."""
    return [(rule.group, rule.resource, verb) for rule in rules for verb in rule.verbs]


def _format_verbs(verbs: Iterable[_Verb]) -> str:
    return ", ".join(f"{verb} {resource}" for _, resource, verb in verbs)


# Quantities ---------------------------------------------------------------------------------------

_SUFFIXES = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1.0,
    **{letter: 1000.0**power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")


def amount(written: object) -> float:
    """Parse a Kubernetes quantity. Raises ValueError for an invalid one."""
    found = _QUANTITY.fullmatch(str(written).strip())
    if found is None or found[2] not in _SUFFIXES:
        raise ValueError(f"{written!r} is not a Kubernetes quantity")
    return float(found[1]) * _SUFFIXES[found[2]]
