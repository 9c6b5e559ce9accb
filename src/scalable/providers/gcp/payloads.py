"""Files as payloads of secrets, packed into parts of a valid size, without I/O."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence

#: Maximum number of bytes of a part; the limit of a secret's version is 64 KiB.
LARGEST = 60_000
FORM = b"scalable-files-1"


def pack(files: Mapping[str, str]) -> list[bytes]:
    """Return the payloads with the files. Each starts with a line about the whole."""
    whole = zlib.compress(json.dumps(dict(files)).encode(), 9)
    digest = hashlib.sha256(whole).hexdigest().encode()
    parts = [whole[start : start + LARGEST] for start in range(0, len(whole), LARGEST)]
    count = str(len(parts)).encode()
    return [b" ".join((FORM, digest, count)) + b"\n" + part for part in parts]


def number_of_parts(payload: bytes) -> int:
    """Return the number of parts, from the first one. Raises ValueError for other payloads."""
    return int(_head(payload)[1])


def unpack(payloads: Sequence[bytes]) -> dict[str, str]:
    """Return the files by relative path. Raises ValueError if parts are missing or do not match."""
    heads = {_head(payload) for payload in payloads}
    if len(heads) != 1:
        raise ValueError("the parts of the files belong to different versions")
    ((digest, count),) = heads
    whole = b"".join(payload.partition(b"\n")[2] for payload in payloads)
    if int(count) != len(payloads) or hashlib.sha256(whole).hexdigest().encode() != digest:
        raise ValueError("a part of the files is missing")
    found = json.loads(zlib.decompress(whole))
    return {str(path): str(text) for path, text in found.items()}


def _head(payload: bytes) -> tuple[bytes, bytes]:
    form, *rest = payload.partition(b"\n")[0].split(b" ")
    if form != FORM or len(rest) != 2:
        raise ValueError("the secret holds no files of scalable")
    return rest[0], rest[1]


def to_text(payload: bytes) -> str:
    """Return a payload in the encoding of requests."""
    return base64.b64encode(payload).decode()


def from_text(text: str) -> bytes:
    """Return the payload in an answer. Raises ValueError if it is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("the payload of a secret is no base64") from error
