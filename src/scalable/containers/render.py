"""Command lines of containers, and the Python of this machine to mount into them."""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Literal, TypeAlias, get_args

from scalable.containers.setup import node_quoted
from scalable.errors import ProviderError
from scalable.model import names
from scalable.protocol.code import lasting

# The Python of this machine -----------------------------------------------------------------------


#: Directories of the image that no mount may hide.
SYSTEM_DIRECTORIES = (
    *("/bin", "/etc", "/lib", "/lib64", "/opt", "/sbin", "/var"),
    *("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local/bin", "/usr/local/lib"),
)
LINKS = 16


@dataclass(frozen=True)
class HostPython:
    """Interpreter of this machine, with the paths that containers mount read-only."""

    executable: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class PythonLayout:
    """Paths of a Python and its packages. All are absolute and exist."""

    #: Interpreter, and the targets of its symbolic links in order.
    executables: tuple[str, ...]
    #: Roots of the environment and of its base installation.
    prefixes: tuple[str, ...]
    #: Standard library and shared library, if they are not below a prefix.
    libraries: tuple[str, ...]
    #: ``sys.path``: site-packages, editable installs, the workflow's directory.
    search_path: tuple[str, ...]
    #: Directories that no mount may hide.
    protected: tuple[str, ...]


def host_python_of(layout: PythonLayout) -> HostPython:
    """Return the interpreter of a layout, and the paths to mount for it."""
    roots = [
        str(PurePath(path).parent.parent)
        for path in layout.executables
        if PurePath(path).parent.name == "bin"
    ]
    wanted = [
        *layout.prefixes,
        *roots,
        *layout.executables,
        *layout.libraries,
        *layout.search_path,
    ]
    harmless = (
        path
        for path in wanted
        if not any(PurePath(place).is_relative_to(path) for place in layout.protected)
    )
    return HostPython(layout.executables[0], _outermost(harmless))


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that are not inside another path of the list."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: PurePath(path).parts):
        if not kept or not PurePath(path).is_relative_to(kept[-1]):
            kept.append(path)
    return tuple(kept)


def read_host_python() -> HostPython:
    """Return the Python of this process, with its packages."""
    return host_python_of(read_layout())


def read_layout() -> PythonLayout:
    """Return the paths of the Python of this process."""
    library = sysconfig.get_config_var("INSTSONAME")
    folder = sysconfig.get_config_var("LIBDIR")
    source = Path(__file__).parents[2]
    return PythonLayout(
        executables=(
            *_links(sys.executable),
            *_links(getattr(sys, "_base_executable", sys.executable)),
        ),
        prefixes=_existing(
            (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix),
        ),
        libraries=_existing(
            (
                sysconfig.get_path("stdlib"),
                sysconfig.get_path("platstdlib"),
                f"{folder}/{library}" if folder and library else "",
            )
        ),
        # sys.path already has the entries of .pth files; its empty entry, the current directory,
        # is left out.
        search_path=_existing((*lasting(sys.path), str(source))),
        protected=(*SYSTEM_DIRECTORIES, tempfile.gettempdir(), *_home()),
    )


def _home() -> list[str]:
    try:
        return [str(Path.home())]
    except RuntimeError:
        return []  # the user has no entry on this machine


def _existing(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(os.path.normpath(path) for path in paths if path.startswith("/") and _is(path))


def _is(path: str) -> bool:
    return Path(path).exists()


def _links(executable: str) -> list[str]:
    """Return a program's path followed by the targets of its chain of symbolic links."""
    chain = [executable]
    while Path(chain[-1]).is_symlink() and len(chain) < LINKS:
        target = Path(chain[-1]).parent / Path(chain[-1]).readlink()
        chain.append(os.path.normpath(target))
    return chain


#: Seconds that a container has to exit before it is killed.
STOP_S = 3

#: Variable that selects the visible GPUs. Slurm sets it for a job.
GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"


def render_command(request: ContainerRequest, command: Sequence[str]) -> list[str]:
    """Return the command line, without a shell, that runs a command in a container.
    It stays in the foreground, forwards standard input and SIGTERM to the command, and exits with
    the command's code.
    """
    if request.runtime == "apptainer":
        return _apptainer(request, command)
    options = ["--interactive", "--name", request.name]
    return [request.runtime, "run", *options, *_run_options(request, command)]


def render_removal(request: ContainerRequest) -> list[str] | None:
    """Return the command line that stops and removes a container, or None for apptainer."""
    if request.runtime == "apptainer":
        return None
    patience = ["--time", str(STOP_S)] if request.runtime == "podman" else []
    return [request.runtime, "rm", "--force", *patience, request.name]


def render_batch(
    request: ContainerRequest,
    command: Sequence[str],
    *,
    inherit: Sequence[str] = (),
    grace_s: int = STOP_S,
) -> str:
    """Return the last lines of a batch script, which run a command in a container and exit.
    A docker or podman container is not a child of the job and would outlive it, so the script waits
    for it, and removes it on SIGTERM after ``grace_s`` seconds.
    """
    names = list(dict.fromkeys([*inherit, *([GPU_VARIABLE] if request.gpus else [])]))
    if request.runtime == "apptainer":
        passed = [
            f'[ -z "${{{name}+set}}" ] || export APPTAINERENV_{name}="${name}"' for name in names
        ]
        words = _on_node(_apptainer(request, command), request)
        return "\n".join([*passed, f"exec {words}", ""])
    passed = [word for name in names for word in ("--env", name)]
    return _WATCHED.format(
        runtime=request.runtime,
        name=request.name,
        options=_on_node([*passed, *_run_options(request, command)], request),
        grace_s=grace_s,
    )


def _on_node(words: Sequence[str], request: ContainerRequest) -> str:
    """Quote a command for a node's shell, which expands variables in environment values."""
    values = {"=".join(item) for item in request.env.items()}
    values |= {f"APPTAINERENV_{value}" for value in values}
    return " ".join(node_quoted(w) if w in values else shlex.quote(w) for w in words)


# The trap is set before the container is started, so that no signal is missed. Until the client
# runs it only sets "stopping". While the image is being pulled no container exists,
# and only a kill stops the client.
_WATCHED = """\
container={name}-"${{SLURM_JOB_ID:-$$}}"
client=
stopping=
end_container() {{
    stopping=1
    [ -n "$client" ] || return 0
    trap '' TERM INT
    {runtime} stop -t {grace_s} "$container" >/dev/null 2>&1 || :
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        kill -0 "$client" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$client" 2>/dev/null || :
}}
trap end_container TERM INT
{runtime} run --name "$container" {options} &
client=$!
[ -z "$stopping" ] || end_container
wait "$client" && code=0 || code=$?
# A wait that the trap interrupted did not return the code of the command.
[ -z "$stopping" ] || {{ wait "$client" && code=0 || code=$?; }}
{runtime} rm --force "$container" >/dev/null 2>&1 || :
exit "$code"
"""


def _apptainer(request: ContainerRequest, command: Sequence[str]) -> list[str]:
    # Values are passed through the environment, because --env splits them at commas. Without
    # --no-eval a shell would expand them. --cleanenv keeps PYTHONPATH, LD_PRELOAD and the like of
    # this machine out of the image, as the other runtimes do.
    variables = [f"APPTAINERENV_{name}={value}" for name, value in request.env.items()]
    return [
        *(["env", *variables] if variables else []),
        *("apptainer", "exec", "--cleanenv", "--no-eval"),
        *(["--nv"] if request.gpus else []),
        *_mount_options(request),
        *(["--pwd", request.workdir] if request.workdir else []),
        request.reference,
        *request.entry,
        *command,
    ]


def _run_options(request: ContainerRequest, command: Sequence[str]) -> list[str]:
    """Return the arguments of ``docker run`` or ``podman run``: options, image and command."""
    program, *arguments = [*request.entry, *command]
    all_gpus = (
        ("--gpus", "all") if request.runtime == "docker" else ("--device", "nvidia.com/gpu=all")
    )
    return [
        "--rm",
        # Without an init the command has process id 1, and ignores signals from inside.
        "--init",
        *("--network", "host"),
        # The process that started the container reads its output; the runtime need not keep it.
        *("--log-driver", "none"),
        *(all_gpus if request.gpus else ()),
        *(["--user", request.user] if request.user else []),
        *_mount_options(request),
        *(word for item in request.env.items() for word in ("--env", "=".join(item))),
        *(["--workdir", request.workdir] if request.workdir else []),
        # As with apptainer, the image's own entry point is not used.
        *("--entrypoint", program),
        request.reference,
        *arguments,
    ]


def _mount_options(request: ContainerRequest) -> list[str]:
    """Return the mount options, outer directories first, since later mounts hide inner ones."""
    mounts = [(inside, outside, False) for outside, inside in request.mounts.items()]
    if request.host_python is not None:
        mounts += [
            (path, path, True)
            for path in request.host_python.paths
            if not any(_provides(*mount, path) for mount in request.mounts.items())
        ]
    mounts.sort(key=lambda mount: PurePath(mount[0]).parts)
    return [word for mount in mounts for word in ("--mount", _mount(*mount))]


def _provides(outside: str, inside: str, path: str) -> bool:
    """Return whether the mount of ``outside`` at ``inside`` already provides a host path."""
    return inside == path or (outside == inside and PurePath(path).is_relative_to(inside))


def _mount(inside: str, outside: str, read_only: bool) -> str:
    """Return a bind mount as a CSV line. All runtimes accept commas and quotes in it."""
    line = io.StringIO()
    fields = ["type=bind", f"source={outside}", f"target={inside}", *(["ro"] if read_only else [])]
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue().removesuffix("\n")


# Request ------------------------------------------------------------------------------------------

Runtime: TypeAlias = Literal["apptainer", "docker", "podman"]

#: Interpreter of an image that has its own Python.
IMAGE_PYTHON = "python3"

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")


@dataclass(frozen=True)
class ContainerRequest:
    """One container: its runtime, image and access to the host.
    Raises ProviderError for an image, variable or mount that cannot be rendered.
    """

    runtime: Runtime
    #: Path of an Apptainer image, or a reference in a registry.
    image: str
    #: Name that is unique on the machine, see :func:`container_name`.
    name: str
    #: Absolute paths in the container, by absolute path on the host. Writable.
    mounts: Mapping[str, str] = field(default_factory=dict)
    #: The only variables that are passed on. No secrets: the process list shows them.
    env: Mapping[str, str] = field(default_factory=dict)
    #: Number of GPUs. More than 0 makes all NVIDIA GPUs of the machine visible.
    gpus: int = 0
    #: Start directory in the container. None for the image's or runtime's default.
    workdir: str | None = None
    #: Python of this machine, mounted read-only. None if the image has its own.
    host_python: HostPython | None = None
    #: Program of the image that starts the command. The image's entry point is not used.
    entry: tuple[str, ...] = ()
    #: Interpreter of the image, if ``host_python`` is None.
    interpreter: str = IMAGE_PYTHON
    #: ``uid:gid``, or None for the default. Docker's default writes files as root.
    user: str | None = None

    def __post_init__(self) -> None:
        if self.runtime not in get_args(Runtime):
            raise ValueError(f"{self.runtime!r} is not a container runtime")
        for reference in (self.image, self.image.removeprefix("docker://")):
            names.IMAGE.require(reference, ProviderError)
        names.check_variables(self.env, ProviderError, names.ANY_VARIABLE)
        for path in (p for mount in self.mounts.items() for p in mount):
            names.PATH.require(path, ProviderError)
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not a container name: use container_name()")

    @property
    def python(self) -> str:
        """Interpreter in the container: that of the image, or the mounted one of this machine."""
        return self.interpreter if self.host_python is None else self.host_python.executable

    @property
    def image_file(self) -> str | None:
        """Path of an image that is a file or directory, or None for a reference."""
        path = self.image.startswith(("/", "./", "../")) or self.image.endswith(".sif")
        return self.image if path and not _SCHEME.match(self.image) else None

    @property
    def reference(self) -> str:
        """Image in this runtime's notation. ``image`` may use any runtime's notation."""
        if self.runtime != "apptainer":
            return self.image.removeprefix("docker://")
        if self.image_file or _SCHEME.match(self.image):
            return self.image
        return f"docker://{self.image}"


def container_name(unit: str) -> str:
    """Return the container name of a unit. ``unit`` is unique among this machine's clusters."""
    cleaned = re.sub(r"[^a-zA-Z0-9_.-]", "-", unit)
    mark = "" if cleaned == unit else f"-{zlib.crc32(unit.encode()):08x}"
    return f"scalable-{cleaned}{mark}"
