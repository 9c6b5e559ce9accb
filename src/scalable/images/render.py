"""The Dockerfile of an image for workers. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from scalable.errors import ProviderError
from scalable.images.requirements import Requirements
from scalable.spec import names

#: Official image of a version of Python.
BASE = "docker.io/library/python:{python}-slim"
#: User for pods that may not run as root.
USER, UID = "scalable", 1000

_INSTALL = "python3 -m pip install --no-cache-dir"
_DIRECTORY = "/tmp/scalable-image"  # noqa: S108 - a path in the image
_GIT = """\
# Some requirements are fetched with git.
RUN apt-get update \\
 && apt-get install --yes --no-install-recommends git \\
 && rm -rf /var/lib/apt/lists/*
"""
_AND = " \\\n && "
_USER = f"""\
# No USER: the credentials of a cluster are files that only their owner can read. The owner is root
# in pods, and in containers of podman the user who starts them, who is root inside. Where pods may
# not run as root, a pod_template has: securityContext: {{runAsUser: {UID}, fsGroup: {UID}}}
RUN useradd --uid {UID} --create-home {USER}
"""
_PROOF = "RUN python3 -c 'import scalable.worker.program'\n"


@dataclass(frozen=True)
class ImageContent:
    """The content of an image for workers.

    Attributes
    ----------
    project
        Name of the project.
    base
        Image that it is made from.
    requirements
        Requirements of the project.
    version
        Release of this package.
    releases
        Package -> release of the client, for the others that have to be the same everywhere.
    wheel
        Name of the wheel of this package in the build's directory; None to install a release.
    extras
        Extras of this package that workers need.
    """

    project: str
    base: str
    requirements: Requirements
    version: str
    releases: Mapping[str, str]
    wheel: str | None
    extras: tuple[str, ...] = ()


def render_dockerfile(content: ImageContent) -> str:
    """Return the Dockerfile of an image.

    It needs no file but itself, and the wheel if there is one.

    Raises
    ------
    ProviderError
        When the name of the base cannot be rendered.
    """
    names.IMAGE.require(content.base, ProviderError)
    if content.base.split() != [content.base]:
        raise ProviderError(f"base {content.base!r} is not the name of an image")
    required = content.requirements
    parts = [_head(content), f"FROM {content.base}\n"]
    if required.needs_git:
        parts.append(_GIT)
    engine = [f"{name}=={release}" for name, release in content.releases.items()]
    # With hashes, pip refuses requirements that have none.
    parts.append(_requirements(required, [] if required.hashed else engine))
    parts.append(_package(content, engine))
    parts.append(_USER)
    parts.append(_PROOF)
    return "\n".join(part for part in parts if part)


def _head(content: ImageContent) -> str:
    required = content.requirements
    project = " ".join(content.project.split())
    lines = [f"Image for the workers of project {project}.", f"Requirements: {required.source}."]
    lines += [f"Left out: {sentence}." for sentence in required.left_out]
    if content.wheel is not None:
        lines.append(f"{content.wheel} is made by `scalable image`, from the installed files.")
    return "".join(f"# {line}\n" for line in lines)


def _requirements(required: Requirements, engine: list[str]) -> str:
    lines = [*required.lines, *engine]
    if not lines:
        return ""
    steps = [f"mkdir -p {_DIRECTORY}", _written(lines, "requirements.txt")]
    constrained = ""
    if required.constraints:
        steps.append(_written(required.constraints, "constraints.txt"))
        constrained = f" -c {_DIRECTORY}/constraints.txt"
    steps.append(f"{_INSTALL} -r {_DIRECTORY}/requirements.txt{constrained}")
    steps.append(f"rm -r {_DIRECTORY}")
    return f"RUN {_AND.join(steps)}\n"


def _written(lines: tuple[str, ...] | list[str], name: str) -> str:
    """Return the shell command that writes lines to a file."""
    quoted = " \\\n      ".join(shlex.quote(line) for line in lines)
    return f"printf '%s\\n' \\\n      {quoted} \\\n      > {_DIRECTORY}/{name}"


def _package(content: ImageContent, engine: list[str]) -> str:
    extras = sorted({*content.extras, *content.requirements.extras})
    chosen = f"[{','.join(extras)}]" if extras else ""
    comment = "# The same releases as on the client: calls and results are pickles.\n"
    if content.wheel is None:
        return f"{comment}RUN {_install([f'scalable{chosen}=={content.version}', *engine])}\n"
    place = f"/tmp/{content.wheel}"  # noqa: S108 - a path in the image
    steps = [_install([f"{place}{chosen}", *engine]), f"rm {place}"]
    return f"{comment}COPY {content.wheel} /tmp/\nRUN {_AND.join(steps)}\n"


def _install(wanted: list[str]) -> str:
    return " \\\n      ".join([_INSTALL, *map(shlex.quote, wanted)])
