"""Mounts of pods: ``pvc://claim/path`` and the other sources of ``mounts``, without I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalable.errors import ProviderError
from scalable.units import parse_bytes

SOURCES = (
    "pvc://claim/path, configmap://name/key, secret://name/key, hostpath:///path or emptydir://size"
)
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class Mount:
    """One mount of a pod."""

    #: The volume in the form of Kubernetes, without its name.
    volume: Mapping[str, Any]
    #: Path in the pod.
    path: str
    #: Path inside the volume; empty for the whole volume.
    part: str = ""


def parse_mount(source: str, path: str) -> Mount:
    """Return the mount of a source such as ``pvc://claim/path``, or raise ProviderError."""
    kind, separator, rest = source.partition("://")
    if not separator:
        raise ProviderError(
            f"mount {source!r} is a path of this machine, which pods do not see",
            hint=f"write {SOURCES}",
        )
    if kind not in _KINDS:
        raise ProviderError(
            f"mount {source!r} has the unknown kind {kind!r}", hint=f"use {SOURCES}"
        )
    if not path.startswith("/"):
        raise ProviderError(f"mount {source!r}: the path in the pod, {path!r}, is not absolute")
    volume, part = _KINDS[kind](source, rest)
    if ".." in part.split("/"):
        raise ProviderError(f"mount {source!r} leads out of its volume by '..'")
    return Mount(volume, path, part)


def volumes(mounts: list[Mount]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the ``volumes`` and ``volumeMounts`` of a pod. Equal sources share a volume."""
    found: list[Mapping[str, Any]] = []
    mounted = []
    for mount in mounts:
        # Two empty directories are two volumes, even with the same size.
        if mount.volume not in found or "emptyDir" in mount.volume:
            found.append(mount.volume)
            number = len(found) - 1
        else:
            number = found.index(mount.volume)
        entry = {"name": f"mount-{number}", "mountPath": mount.path}
        if mount.part:
            entry["subPath"] = mount.part
        mounted.append(entry)
    return [{"name": f"mount-{n}", **volume} for n, volume in enumerate(found)], mounted


def _named(source: str, rest: str) -> tuple[str, str]:
    name, _, part = rest.partition("/")
    if not _NAME.fullmatch(name):
        raise ProviderError(f"mount {source!r} does not name an object: {name!r} is no such name")
    return name, part.strip("/")


def _claim(source: str, rest: str) -> tuple[dict[str, Any], str]:
    name, part = _named(source, rest)
    return {"persistentVolumeClaim": {"claimName": name}}, part


def _config_map(source: str, rest: str) -> tuple[dict[str, Any], str]:
    name, part = _named(source, rest)
    return {"configMap": {"name": name}}, part


def _secret(source: str, rest: str) -> tuple[dict[str, Any], str]:
    name, part = _named(source, rest)
    return {"secret": {"secretName": name}}, part


def _host_path(source: str, rest: str) -> tuple[dict[str, Any], str]:
    if not rest.startswith("/"):
        raise ProviderError(
            f"mount {source!r} has no absolute path", hint="write hostpath:///path, with three /"
        )
    return {"hostPath": {"path": rest}}, ""


def _empty(source: str, rest: str) -> tuple[dict[str, Any], str]:
    if not rest:
        return {"emptyDir": {}}, ""
    try:
        size = parse_bytes(rest)
    except ValueError as error:
        raise ProviderError(f"mount {source!r}: {error}", hint="write emptydir://10G") from error
    return {"emptyDir": {"sizeLimit": str(size)}}, ""


_KINDS = {
    "pvc": _claim,
    "configmap": _config_map,
    "secret": _secret,
    "hostpath": _host_path,
    "emptydir": _empty,
}
