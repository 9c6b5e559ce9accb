"""Writer of a manifest's plain values as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from scalable.manifest.tree import resolve_plain


def to_yaml(data: Mapping[str, Any]) -> str:
    """Return a manifest as YAML with ``${`` in strings escaped."""
    return yaml.dump(_escaped(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value


class _Dumper(yaml.SafeDumper):
    """YAML writer that quotes strings which YAML 1.1 or 1.2 would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True

    def text(self, data: str) -> yaml.ScalarNode:
        style = None if isinstance(resolve_plain(data), str) and data != "<<" else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.text)
