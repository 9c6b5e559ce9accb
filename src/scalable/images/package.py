"""`scalable` as an image gets it: a release from an index, or a wheel of the installed files."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from importlib import metadata
from pathlib import Path

import scalable
from scalable.errors import ProviderError
from scalable.images.sources import origin

NAME = "scalable"
#: Time of all files in the wheel, so that equal sources make equal wheels.
_WHEN = (1980, 1, 1, 0, 0, 0)
_WHEEL = """\
Wheel-Version: 1.0
Generator: scalable
Root-Is-Purelib: true
Tag: py3-none-any
"""


def wheel_name() -> str | None:
    """Return the name of the wheel that an image needs; None if an index has the release.

    Raises
    ------
    ProviderError
        When the package is used without being installed.
    """
    distribution = _distribution()
    if origin(distribution) is None:
        return None
    return f"{NAME}-{distribution.version.replace('-', '_')}-py3-none-any.whl"


def wheel_content() -> bytes:
    """Return a wheel of the files that this process runs.

    Equal files give equal wheels. No build program is needed, because the package is pure Python.

    Raises
    ------
    ProviderError
        When the package is used without being installed.
    """
    distribution = _distribution()
    top = Path(scalable.__file__).parent
    information = f"{NAME}-{distribution.version.replace('-', '_')}.dist-info"
    files = {
        f"{NAME}/{path.relative_to(top).as_posix()}": path.read_bytes()
        for path in sorted(top.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files[f"{information}/METADATA"] = (distribution.read_text("METADATA") or "").encode()
    files[f"{information}/WHEEL"] = _WHEEL.encode()
    files[f"{information}/entry_points.txt"] = (
        distribution.read_text("entry_points.txt") or ""
    ).encode()
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    record = f"{information}/RECORD"
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _WHEN)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return made.getvalue()


def _digest(data: bytes) -> str:
    """Return the digest of a file as a wheel records it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution(NAME)
    except metadata.PackageNotFoundError as error:
        raise ProviderError(
            "scalable is not installed in this Python, only found on its search path",
            hint="install it, if only with `pip install --editable`",
        ) from error
