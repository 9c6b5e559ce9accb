"""Reader of manifest files that returns a tree and reports every error."""

from __future__ import annotations

import os
import pathlib
import re
import stat

from scalable.manifest.document import Node, Position
from scalable.manifest.faults import E_SYNTAX, E_UNREADABLE, Faults, SourceLines
from scalable.manifest.yaml_format import read_yaml

_MEBIBYTE = 1024**2
_LARGEST = 5 * _MEBIBYTE
# tomllib is Python and reads a tenth as fast as the YAML parser.
_LARGEST_TOML = _MEBIBYTE
_ESCAPES = re.compile(r"\\\\|\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)


def read_document(path: str | os.PathLike[str]) -> tuple[Node | None, Faults]:
    """Return a file's tree (None if unreadable) and errors. Names in ``.toml`` mean TOML."""
    name = os.fspath(path)
    suffix = pathlib.Path(name).suffix.lower()
    faults = Faults(SourceLines(name))
    text = _read_text(name, _LARGEST_TOML if suffix == ".toml" else _LARGEST, faults)
    if text is None:
        return None, faults
    faults = Faults(SourceLines.of(name, text))
    if suffix == ".toml":
        from scalable.manifest.toml_reader import read_toml

        root = read_toml(text, faults)
    elif suffix == ".json":
        root = read_yaml(_json_as_yaml(text), faults, quoted_is_plain=True)
    else:
        root = read_yaml(text, faults)
    if root is not None and isinstance(root.value, dict) and (root.entries or faults):
        return root, faults
    if not faults:
        empty = root is None or root.is_null or isinstance(root.value, dict)
        problem = "is empty" if empty else "must be a map of keys to values"
        hint = "write a first one with `scalable init`"
        faults.add(E_SYNTAX, (), Position(1, 1), f"the manifest {problem}", hint)
    return None, faults


def _json_as_yaml(text: str) -> str:
    """Replace what JSON allows but YAML does not: tabs between tokens, and surrogate pairs."""
    return _ESCAPES.sub(_paired, text.replace("\t", " "))


def _paired(match: re.Match[str]) -> str:
    high, low = match.group(1), match.group(2)
    if high is None:
        return match.group()
    return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)


def _read_text(name: str, largest: int, faults: Faults) -> str | None:
    try:
        if stat.S_ISFIFO(os.stat(name).st_mode):  # noqa: PTH116 - as below
            hint = "write it into a file: a manifest is read several times"
            faults.add(E_UNREADABLE, (), None, "the manifest is a pipe", hint)
            return None
        with open(name, "rb") as stream:  # noqa: PTH123 - the name may be a descriptor's path
            content = stream.read(largest + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "give the path of the manifest, or write a first one with `scalable init`"
        faults.add(E_UNREADABLE, (), None, f"cannot read the manifest: {reason}", hint)
        return None
    if len(content) > largest:
        message = f"the manifest exceeds the limit of {largest // _MEBIBYTE} MiB"
        faults.add(E_UNREADABLE, (), None, message, "keep data in other files")
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8-sig", "replace")) + 1
        place = Position(before.count(b"\n") + 1, column)
        message = f"the manifest is not UTF-8: byte 0x{content[error.start]:02x} is not valid here"
        faults.add(E_SYNTAX, (), place, message, "save the file as UTF-8")
        return None
