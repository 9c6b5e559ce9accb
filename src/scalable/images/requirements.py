"""The requirements of a project, as an image can install them. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scalable.storage import without_secrets

#: Packages that an image has anyway, and that no workflow needs.
TOOLS = frozenset({"pip", "setuptools", "wheel"})

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?\s*(.*)", re.DOTALL)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_FILE = re.compile(r"(^|[\s@+=])file:")
_COMMENT = re.compile(r"(^|\s+)#.*$")
_EDITABLE = ("-e", "--editable")
#: Options of pip that make sense in an image, each with whether a value follows.
_OPTIONS = {
    "-i": True,
    "--index-url": True,
    "--extra-index-url": True,
    "-f": True,
    "--find-links": True,
    "--no-index": False,
    "--no-binary": True,
    "--only-binary": True,
    "--prefer-binary": False,
    "--require-hashes": False,
    "--pre": False,
    "--trusted-host": True,
}
_ARCHIVES = (".whl", ".tar.gz", ".zip")


@dataclass(frozen=True)
class Requirements:
    """The requirements that an image installs for a project.

    Attributes
    ----------
    source
        Description of where the requirements come from, such as ``requirements.txt``.
    lines
        Lines of a requirements file.
    constraints
        Lines of a constraints file.
    left_out
        Sentences: what was left out, and why.
    extras
        Extras of this package that the requirements name.
    """

    source: str
    lines: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()

    @property
    def needs_git(self) -> bool:
        """Whether a requirement is fetched with git."""
        return any("git+" in line for line in self.lines)

    @property
    def hashed(self) -> bool:
        """Whether pip compares hashes, and refuses requirements without one."""
        return any("--hash" in line or line == "--require-hashes" for line in self.lines)


def normal_name(name: str) -> str:
    """Return the name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def logical_lines(text: str) -> list[str]:
    """Return the lines of a requirements file: joined, without comments and empty lines."""
    joined = re.sub(r"\\\r?\n", " ", text)
    lines = (_COMMENT.sub("", line).strip() for line in joined.splitlines())
    return [" ".join(line.split()) for line in lines if line]


def installable(
    source: str, lines: Iterable[str], constraints: Iterable[str], pinned: Iterable[str]
) -> Requirements:
    """Choose the requirements that an image can install.

    Parameters
    ----------
    source
        Description of where they come from.
    lines, constraints
        Logical lines, without the files that they include.
    pinned
        Names of packages whose release is given by the client's.
    """
    known = frozenset(normal_name(name) for name in pinned)
    kept: dict[str, None] = {}
    left_out: dict[str, None] = {}
    extras: set[str] = set()
    for line in lines:
        name, own_extras, rest = _parts(line)
        if name not in known:
            reason = _refusal(line)
            if reason is None:
                kept[line] = None
            else:
                left_out[f"{_shown(line)}: {reason}"] = None
        elif name == "scalable":
            extras |= own_extras
        elif own_extras:  # the release is the client's; its extras are installed with it
            marker = rest[rest.index(";") :] if ";" in rest else ""
            kept[f"{name}[{','.join(sorted(own_extras))}]{marker}"] = None
    allowed = [line for line in constraints if _refusal(line) is None]
    return Requirements(
        source,
        tuple(kept),
        tuple(line for line in allowed if _parts(line)[0] not in known),
        tuple(left_out),
        tuple(sorted(extras)),
    )


def _parts(line: str) -> tuple[str, set[str], str]:
    """Return the name of a requirement, its extras, and the rest; no name for an option."""
    match = _NAME.fullmatch(line)
    if match is None:
        return "", set(), line
    name, extras, rest = match.groups()
    found = {part.strip() for part in (extras or "").split(",") if part.strip()}
    return normal_name(name), found, rest


def _refusal(line: str) -> str | None:
    """Return why an image cannot install a line; None if it can."""
    words = line.replace("=", " ", 1).split() if line.startswith("--") else line.split()
    if words[0] in _EDITABLE:
        return "it is an editable install of this machine"
    option = words[0].startswith("-")
    if option and words[0] not in _OPTIONS:
        return "pip options of this kind are not passed on"
    urls = _URL.findall(line)
    if any(without_secrets(url) != url for url in urls if "git+ssh" not in url):
        return "it contains a credential, which an image would show to everybody"
    if "git+ssh://" in line or re.search(r"\b(hg|svn|bzr)\+", line):
        return "it is fetched with a program or a key that the build does not have"
    target = words[1] if option and len(words) > 1 else words[0]
    by_path = target.startswith((".", "/", "~")) or (
        not urls and target.partition(";")[0].endswith(_ARCHIVES)
    )
    if _FILE.search(line) or (by_path and not (option and not _OPTIONS[words[0]])):
        return "it is a path of this machine"
    return None


def _shown(line: str) -> str:
    """Return a line for a comment, without the secrets of its URLs."""
    return _URL.sub(lambda match: without_secrets(match[0]), line)


@dataclass(frozen=True)
class Installed:
    """A package of a Python environment.

    Attributes
    ----------
    name, version
        Name and release.
    origin
        Content of its ``direct_url.json``, if it was not installed from an index.
    """

    name: str
    version: str
    origin: Mapping[str, Any] | None = None


def frozen(packages: Iterable[Installed], pinned: Iterable[str]) -> Requirements:
    """Return the packages of an environment, in their releases, as requirements.

    Parameters
    ----------
    packages
        Packages of the environment.
    pinned
        Names of packages whose release is given by the client's.
    """
    ours = TOOLS | {normal_name(name) for name in pinned}
    lines, left_out = [], []
    for package in sorted(packages, key=lambda package: normal_name(package.name)):
        if normal_name(package.name) in ours:
            continue
        reason = _not_installable(package)
        if reason is None:
            lines.append(_frozen_line(package))
        else:
            left_out.append(f"{package.name} {package.version}: it was installed from {reason}")
    found = installable("the packages of this Python", lines, (), pinned)
    return replace(found, left_out=(*left_out, *found.left_out))


def _not_installable(package: Installed) -> str | None:
    """Return the place that a package was installed from, if images cannot use it; else None."""
    if package.origin is None:
        local = "+" in package.version
        return "a build that the Python Package Index does not have" if local else None
    url = str(package.origin.get("url", ""))
    return None if url and not url.startswith("file:") else "a path of this machine"


def _frozen_line(package: Installed) -> str:
    if package.origin is None:
        return f"{package.name}=={package.version}"
    url, source = str(package.origin.get("url", "")), package.origin.get("vcs_info")
    if source is None:
        return f"{package.name} @ {url}"
    return f"{package.name} @ {source.get('vcs')}+{url}@{source.get('commit_id')}"
