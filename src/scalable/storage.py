"""`Storage`: the location of a project's results, opened by URL on both sides of a cluster.
A task finds its session's storage through :func:`scalable.current_storage`.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from scalable.errors import ManifestError, ProviderError

logger = logging.getLogger("scalable.storage")

#: Maps schemes to the libraries that they need, or None where fsspec itself suffices.
SCHEMES: dict[str, str | None] = {"file": None, "s3": "s3fs", "gs": "gcsfs", "memory": None}
#: Seconds that a store has to report the size of an object.
SIZE_TIMEOUT_S = 5.0
#: Advice for a URL that contains a secret.
NO_SECRETS = (
    "credentials come from the environment, the library's own files, or the service account of "
    "the workers"
)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?(.*)", re.DOTALL)
_SECRET = re.compile(r"key|secret|token|passw|signature|credential|^sig$|auth", re.IGNORECASE)
_HIDDEN = "..."


@dataclass(frozen=True)
class UrlFault:
    """Reason why a string is not the URL of a storage."""

    #: Message that follows the value's name, such as ``must ...``. It never quotes a secret.
    problem: str
    hint: str
    #: True if the string contains a credential, so that it must not be shown.
    secret: bool = False


def url_fault(text: str) -> UrlFault | None:
    """Return why a URL or path cannot be the storage of a project, or None if it can."""
    scheme, slashes, rest = _split(text)
    authority = rest.partition("/")[0] if slashes else ""
    if "@" in authority:
        return UrlFault("must not contain a user or a password", NO_SECRETS, secret=True)
    if "::" in text:
        hint = "write s3://bucket/prefix"
        return UrlFault("must be one URL, not a chain of URLs", hint, secret="@" in text)
    if "?" in rest and scheme != "file":
        return UrlFault("must not contain a query (?...)", NO_SECRETS, secret=True)
    if scheme == "file":
        return None
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        hint = f"known: {known}; write a directory with a colon in its name as ./name"
        return UrlFault(f"must not have the scheme {scheme!r}", hint)
    named = scheme == "memory" or authority
    return None if named else UrlFault("must name a bucket", f"write {scheme}://bucket/prefix")


def absolute_url(text: str, directory: str | os.PathLike[str]) -> str:
    """Return the URL of a storage with relative paths resolved from ``directory``."""
    scheme, _, rest = _split(text)
    if scheme == "file":
        return f"file://{os.path.normpath(Path(directory).absolute() / rest)}"
    return f"{scheme}://{rest.strip('/')}"


def scheme_of(text: str) -> str:
    """Return the scheme of a URL, or ``file`` for a path."""
    return _split(text)[0]


def _split(text: str) -> tuple[str, bool, str]:
    """Return a URL's scheme, whether ``//`` follows it, and the rest."""
    match = _SCHEME.fullmatch(text)
    if match is None or text.startswith((".", "/")):
        return "file", False, text
    scheme, slashes, rest = match.groups()
    return scheme.lower(), bool(slashes), rest


@dataclass(frozen=True)
class Storage:
    """A directory of files or objects, given by a URL.

    Only the URL is pickled. Each process opens the storage with its own credentials.

    Parameters
    ----------
    root
        URL (``file:``, ``s3://``, ``gs://``, ``memory://``), or the path of a directory.

    Examples
    --------
    >>> def run(year, storage):
    ...     with storage.open(f"maps/{year}.txt", "w") as file:
    ...         return file.write("7.1")
    >>> run(2050, Storage("memory://harvest"))
    3
    """

    root: str

    def __post_init__(self) -> None:
        fault = url_fault(self.root)
        if fault is not None:
            raise ManifestError(f"the URL of a storage {fault.problem}", hint=fault.hint)
        object.__setattr__(self, "root", absolute_url(self.root, Path.cwd()))

    @property
    def fs(self) -> Any:
        """The fsspec file system. It accepts the paths returned by :meth:`path`.

        Raises
        ------
        ProviderError
            If the library for the URL's scheme is not installed.
        """
        return self._opened()[0]

    def path(self, path: str = "") -> str:
        """Return a path in the form that :attr:`fs` accepts.

        Parameters
        ----------
        path
            Path within the storage.
        """
        inner = _inner(path)
        top: str = self._opened()[1]
        return f"{top.rstrip('/')}/{inner}" if inner else top

    def url(self, path: str = "") -> str:
        """Return the URL of a path within the storage.

        Raises
        ------
        ValueError
            If the path is outside the storage.
        """
        inner = _inner(path)
        joint = "" if self.root.endswith("/") else "/"
        return f"{self.root}{joint}{inner}" if inner else self.root

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        """Open a file or object. For writing, a missing local directory is created.

        Parameters
        ----------
        path
            Path within the storage, such as ``maps/a.nc``.
        mode
            As for the built-in ``open``. Object stores do not support ``a`` and ``+``.
        **options
            Further arguments of fsspec's ``open``, such as ``encoding``.

        Raises
        ------
        ValueError
            If the path is outside the storage.
        ProviderError
            If the library for the URL's scheme is not installed.
        """
        whole = self.path(path)
        if "r" not in mode and SCHEMES[scheme_of(self.root)] is None:
            self.fs.makedirs(whole.rpartition("/")[0], exist_ok=True)
        return self.fs.open(whole, mode, **options)

    def exists(self, path: str = "") -> bool:
        """Return whether a file, object or directory with this path exists."""
        whole = self.path(path)
        self.fs.invalidate_cache()  # a worker may have written since the last look
        return bool(self.fs.exists(whole))

    def ls(self, path: str = "") -> list[str]:
        """Return the sorted paths of a directory's contents, relative to the storage.

        Raises
        ------
        FileNotFoundError
            If there is no such directory.
        """
        top = self.path().strip("/")
        self.fs.invalidate_cache()
        found: Iterable[str] = self.fs.ls(self.path(path), detail=False)
        # Some stores represent a directory by an empty object, and list it there.
        names = {name.strip("/"): name.endswith("/") for name in found}
        own = self.path(path).strip("/")
        return sorted(
            name.removeprefix(top).strip("/")
            for name, stands_in in names.items()
            if not (stands_in and name == own)
        )

    def _opened(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        scheme = scheme_of(self.root)
        try:
            fs, path = url_to_fs(self.root)  # type: ignore[no-untyped-call]
        except ImportError as error:
            raise ProviderError(
                f"{scheme}:// needs a library that this Python lacks: {error}",
                hint=f"pip install {SCHEMES[scheme]}, also in the image of the workers",
            ) from error
        return fs, path


def _inner(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "://" in path:
        raise ValueError(f"{path!r} is not a path within the storage, such as 'maps/a.nc'")
    return "/".join(parts)


def no_storage() -> ManifestError:
    """Return the error for a manifest without a storage."""
    return ManifestError(
        "the manifest names no storage",
        hint="add default_storage under project: a directory, s3://bucket/prefix or "
        "gs://bucket/prefix",
    )


def without_secrets(url: str) -> str:
    """Return a URL for a record, without passwords and secret parameters."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    authority = parts.netloc.rpartition("@")[2]
    query = parts.query
    fields = parse_qsl(query, keep_blank_values=True)
    if any(_SECRET.search(name) for name, _ in fields):
        query = urlencode([(n, _HIDDEN if _SECRET.search(n) else text) for n, text in fields])
    if (authority, query) == (parts.netloc, parts.query):
        return url
    return urlunsplit(parts._replace(netloc=authority, query=query))


def size_of(url: str, timeout_s: float = SIZE_TIMEOUT_S) -> int | None:
    """Return the size of a file or object in bytes, or None if its store does not reply in time."""
    answers: list[Any] = []

    def ask() -> None:
        from fsspec.core import url_to_fs

        try:
            fs, path = url_to_fs(url)  # type: ignore[no-untyped-call]
            answers.append(fs.info(path).get("size"))
        except Exception as error:  # noqa: BLE001 - each store's library has errors of its own
            logger.debug("could not read the size of %s: %r", without_secrets(url), error)

    # In a thread of its own, because libraries of stores have long timeouts and retry.
    asking = threading.Thread(target=ask, name="scalable-size", daemon=True)
    asking.start()
    asking.join(timeout_s)
    return answers[0] if answers and isinstance(answers[0], int) else None
