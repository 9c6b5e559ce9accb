"""Merging of a pod with the user's ``pod_template``, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalable.errors import ProviderError

#: Lists whose items are identified by a key. Items of other lists are appended.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
}


def merge(template: Mapping[str, Any], ours: Mapping[str, Any], *, file: str) -> dict[str, Any]:
    """Return a pod with the template's fields and ours. Raises ProviderError where they differ."""
    return _merged_map(template, ours, "", file)


def _merged_map(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], path: str, file: str
) -> dict[str, Any]:
    merged = dict(ours)
    for key, value in theirs.items():
        at = f"{path}.{key}" if path else key
        merged[key] = _merged(value, ours[key], key, at, file) if key in ours else value
    return merged


def _merged(theirs: Any, ours: Any, key: str, path: str, file: str) -> Any:
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        return _merged_map(theirs, ours, path, file)
    if isinstance(theirs, list) and isinstance(ours, list):
        return _merged_list(theirs, ours, _KEYS.get(key), path, file)
    if theirs == ours:
        return ours
    raise ProviderError(
        f"pod_template {file}: {path} is {theirs!r}, and scalable sets it to {ours!r}",
        hint="remove it from the template, or set it by the manifest",
    )


def _merged_list(
    theirs: list[Any], ours: list[Any], key: str | None, path: str, file: str
) -> list[Any]:
    if key is None:
        return [*ours, *(item for item in theirs if item not in ours)]
    known = {item[key]: number for number, item in enumerate(ours)}
    merged = list(ours)
    for item in theirs:
        name = item.get(key) if isinstance(item, Mapping) else None
        number = known.get(name)
        if number is None:
            merged.append(item)
        else:
            merged[number] = _merged_map(item, ours[number], f"{path}[{key}={name}]", file)
    return merged


def fault(template: object) -> str | None:
    """Return why a value cannot be a pod template, or None if it can."""
    if not isinstance(template, Mapping):
        return "it must be a map with metadata and spec"
    odd = sorted(set(map(str, template)) - {"apiVersion", "kind", "metadata", "spec"})
    if odd:
        return f"unknown key {odd[0]!r}; a pod has metadata and spec"
    if template.get("kind", "Pod") != "Pod":
        return f"its kind is {template['kind']!r}, and must be Pod"
    parts = [
        part for part in ("metadata", "spec") if not isinstance(template.get(part, {}), Mapping)
    ]
    return f"{parts[0]} must be a map" if parts else None
