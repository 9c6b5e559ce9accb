"""Credentials for the classes of worker specifications that are not Dask's own.
Such a class may write its options into a command line or job script. It gets the paths of files
that only the user can read, never the keys themselves.
"""

from __future__ import annotations

import inspect
import secrets
import shutil
from pathlib import Path
from typing import Any

from distributed import Security

from scalable import settings
from scalable.errors import ProviderError
from scalable.files import private_directory, write_json, write_private
from scalable.liveness import identify_process
from scalable.records.directory import OWNER

_HINT = (
    "give the class a parameter security, and hand it on to the worker that it starts; or, only "
    "where no other user can reach the scheduler, give PoolCluster a scheduler with "
    "{'protocol': 'tcp://'} in its options"
)


class EntrySecurity:
    """Credentials of a cluster, in files, for objects that start workers elsewhere."""

    def __init__(self, security: Any) -> None:
        self._security = security
        self._directory: Path | None = None
        self._in_files: Any = None

    def options_for(self, cls: Any, name: Any, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options for an entry's class, with ``security`` if the class accepts it.
        Raise ProviderError if the class accepts no credentials, so that its workers could never
        connect.
        """
        security = self._security
        if "security" in options or not getattr(security, "require_encryption", False):
            return options
        if takes_security(cls):
            return {**options, "security": self._as_files()}
        if not _texts(security):
            return options  # the class may get the files in another way
        shown = getattr(cls, "__name__", cls)
        raise ProviderError(
            f"the workers of {shown} ({name!r}) could never connect: the scheduler accepts only "
            f"the TLS credentials of this cluster, and {shown} takes no security=",
            hint=_HINT,
        )

    def _as_files(self) -> Any:
        """Return the credentials with file paths instead of PEM strings."""
        texts = _texts(self._security)
        if not texts:
            return self._security
        if self._in_files is None:
            self._directory = private_directory(
                settings.state_dir() / "embedded" / f"credentials-{secrets.token_hex(4)}"
            )
            # `gc` removes the directory when this process has exited.
            write_json(self._directory / OWNER, identify_process())
            paths = {name: self._directory / f"{name}.pem" for name in texts}
            for name, path in paths.items():
                write_private(path, texts[name])
            self._in_files = Security(
                require_encryption=True, **{name: str(path) for name, path in paths.items()}
            )
        return self._in_files

    def remove(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def _texts(security: Any) -> dict[str, str]:
    """Return the certificates and keys that are PEM strings, not paths."""
    roles = ("tls_worker_cert", "tls_worker_key", "tls_client_cert", "tls_client_key")
    found = {name: getattr(security, name, None) for name in ("tls_ca_file", *roles)}
    return {name: value for name, value in found.items() if value and "\n" in value}


def takes_security(cls: Any) -> bool:
    """Return whether a class, or a function that creates objects, accepts ``security=``."""
    if not isinstance(cls, type):
        makers = [cls]
    else:
        makers = [vars(each)["__init__"] for each in cls.__mro__ if "__init__" in vars(each)]
    for maker in makers:
        try:
            parameters = inspect.signature(maker).parameters
        except (TypeError, ValueError):  # written in C
            return False
        if "security" in parameters:
            return True
        if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
            # The **kwargs of an earlier constructor may not be passed on to this one.
            return maker is not makers[0]
    return True
