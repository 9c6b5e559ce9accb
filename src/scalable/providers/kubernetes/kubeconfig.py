"""Context and namespace in the user's kubeconfig. The slow library is not used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

DEFAULT_FILE = Path("~/.kube/config").expanduser()
#: Files of a pod's service account.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_NAMESPACE = "default"


def inside() -> bool:
    """Return whether this process runs in a pod without a kubeconfig."""
    named = os.environ.get("KUBECONFIG") or DEFAULT_FILE.exists()
    return not named and "KUBERNETES_SERVICE_HOST" in os.environ


def current_place() -> dict[str, str] | None:
    """Return the current context (empty in a pod) and namespace, or None without access."""
    if inside():
        try:
            namespace = (ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        except OSError:
            return None  # the pod has no service account
        return {"context": "", "namespace": namespace}
    context, contexts = _merged()
    if not context:
        return None
    namespace = contexts.get(context, {}).get("namespace") or DEFAULT_NAMESPACE
    return {"context": context, "namespace": str(namespace)}


def exists(named: str) -> bool:
    """Return whether one of the files in a ``KUBECONFIG`` value exists."""
    return any(Path(path).is_file() for path in named.split(os.pathsep) if path)


def current_context() -> str:
    """Return the current context, or an empty string in a pod or without a kubeconfig."""
    return (current_place() or {"context": ""})["context"]


def user_of(context: str) -> str:
    """Return a context's user name, or an empty string without one."""
    return str(_merged()[1].get(context, {}).get("user") or "")


def _merged() -> tuple[str, dict[str, Any]]:
    """Return the current context, and the contexts by name. Earlier files take precedence."""
    current = ""
    contexts: dict[str, Any] = {}
    named = os.environ.get("KUBECONFIG") or str(DEFAULT_FILE)
    for path in named.split(os.pathsep):
        said = _read(Path(path)) if path else {}
        current = current or str(said.get("current-context") or "")
        for entry in said.get("contexts") or ():
            if isinstance(entry, dict) and "name" in entry:
                contexts.setdefault(str(entry["name"]), entry.get("context") or {})
    return current, contexts


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}  # the library reports the problem when it is used
    return said if isinstance(said, dict) else {}
