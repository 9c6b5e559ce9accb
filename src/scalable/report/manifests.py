"""Manifest of a run as a report shows it: without secrets, and of limited size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from scalable.storage import without_secrets

#: Largest size in bytes of a manifest that is shown.
LARGEST = 100_000
_HIDDEN = "(left out)"
#: Maximum depth of a manifest that is shown.
_DEPTH = 20


def shown_manifest(run: Path) -> str:
    """Return a run's resolved manifest as YAML, without values of environment variables.
    Empty if the manifest is missing, too large or unreadable.
    """
    file = run / "manifest.yaml"
    try:
        if file.stat().st_size > LARGEST:
            return ""
        text = file.read_text(encoding="utf-8")
        # Our manifests have no aliases, which can make a short string very large.
        if "*" in text and any(isinstance(e, yaml.AliasEvent) for e in yaml.parse(text)):
            return ""
        value = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return ""
    if not isinstance(value, dict):
        return ""
    shown: str = yaml.safe_dump(_without_secrets(value), sort_keys=False, allow_unicode=True)
    return shown


def _without_secrets(value: Any, depth: int = 0) -> Any:
    if depth > _DEPTH:
        return _HIDDEN
    if isinstance(value, dict):
        return {
            str(key): dict.fromkeys(map(str, inner), _HIDDEN)
            if key == "env" and isinstance(inner, dict)
            else _HIDDEN
            if key == "env"
            else _without_secrets(inner, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_without_secrets(inner, depth + 1) for inner in value]
    return without_secrets(value) if isinstance(value, str) and "://" in value else value
