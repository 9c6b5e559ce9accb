"""Components (resource profiles named by tags), and the tasks bound to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from scalable.model.failures import RetryPolicy
from scalable.units import parse_bytes, parse_walltime

#: Largest number of workers of a pool. A plan for more takes minutes, and memory without limit.
MOST_WORKERS = 100_000
#: Variables by which numerical libraries choose their number of threads.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@dataclass(frozen=True)
class WorkerRange:
    """Inclusive range of worker counts, without an upper bound if ``maximum`` is None."""

    minimum: int = 0
    maximum: int | None = None

    def __post_init__(self) -> None:
        if self.minimum < 0 or (self.maximum is not None and self.maximum < self.minimum):
            raise ValueError(
                f"minimum {self.minimum} and maximum {self.maximum} are not a range of workers"
            )

    @property
    def fixed(self) -> int | None:
        """The only count in the range, or None if there are several."""
        return self.minimum if self.minimum == self.maximum else None


@dataclass(frozen=True)
class ComponentSpec:
    """The resource profile of one pool's workers."""

    #: The tag that routes tasks.
    name: str
    #: Container image. None to run without one.
    image: str | None = None
    #: Container runtime. None for the target's.
    runtime: str | None = None
    cpus: float = 1
    #: Memory of one worker, as written in the manifest.
    memory: str | None = None
    gpus: int = 0
    #: Number of tasks that a worker runs at once, unless the target overrides it.
    slots: int = 1
    #: Maps paths on the host to paths in the container.
    mounts: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    #: Maps variable names to the sources of their values: ``env:NAME`` or ``file:PATH``.
    secrets: Mapping[str, str] = field(default_factory=dict)
    #: Python module that runs in the worker before its first task.
    preload_script: str | None = None
    #: Lines for the shell that starts the worker.
    setup: tuple[str, ...] = ()
    #: Interpreter of the workers. None for this process's interpreter, or the image's.
    python: str | None = None
    workers: WorkerRange | None = None
    #: Labels that group pools in reports; they do not route tasks.
    tags: tuple[str, ...] = ()

    @cached_property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_bytes(self.memory)

    def environment(self, slots: int) -> dict[str, str]:
        """Return a worker's environment variables: thread limits (cores per slot), then ``env``."""
        threads = str(max(1, int(self.cpus // slots)))
        return {**dict.fromkeys(THREAD_VARIABLES, threads), **self.env}


@dataclass(frozen=True)
class TaskSpec:
    """Entry of the manifest for one task name: its component, and values for planning."""

    name: str
    component: str
    #: True if results are cached across runs.
    cache: bool = False
    #: Names or paths of its results.
    outputs: tuple[str, ...] = ()
    #: Expected number of tasks.
    count: int | None = None
    #: Expected running time of one task.
    duration_s: float | None = None
    #: Expected peak memory of one task, as written.
    memory: str | None = None
    #: Task names that must have finished before this one starts.
    after: tuple[str, ...] = ()
    #: Rule for retries, or None for no retry.
    retries: RetryPolicy | None = None

    @cached_property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_bytes(self.memory)

    @property
    def expected_work_s(self) -> float | None:
        """Expected worker-seconds of all tasks, or None without an estimate in the manifest."""
        if self.count is None or self.duration_s is None:
            return None
        return self.count * self.duration_s


# Resources ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResourceRequest:
    """The resources of one worker.

    Attributes
    ----------
    cpus
        Number of cores reserved for the worker. Not enforced if workers are plain processes.
    memory
        Memory as written in the manifest (``"20G"``), or None for no particular amount.
    walltime
        Time limit as written in the manifest (``"04:00:00"``), or None without a limit.
    gpus
        Number of GPUs.
    """

    cpus: float = 1
    memory: str | None = None
    walltime: str | None = None
    gpus: int = 0

    @cached_property
    def memory_bytes(self) -> int | None:
        """Memory of one worker in bytes, or None."""
        return None if self.memory is None else parse_bytes(self.memory)

    @cached_property
    def walltime_s(self) -> float | None:
        """The walltime in seconds, or None."""
        return None if self.walltime is None else parse_walltime(self.walltime)

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return asdict(self)

    def __repr__(self) -> str:
        shown = [f"cpus={self.cpus:g}"]
        shown += [f"memory={self.memory!r}"] if self.memory is not None else []
        shown += [f"walltime={self.walltime!r}"] if self.walltime is not None else []
        shown += [f"gpus={self.gpus}"] if self.gpus else []
        return f"ResourceRequest({', '.join(shown)})"


# Traits: the properties of a provider that the rest of the package acts upon ----------------------


@dataclass(frozen=True)
class Starting:
    """Assumed duration and billed time of a worker's start, until starts are measured.
    The defaults suit a cloud, which bills a machine from its boot on.
    """

    #: Seconds from the request of a worker until it connects.
    startup_s: float = 60.0
    #: Largest number of seconds of a start that are billed.
    billed_s: float = math.inf
    #: Shortest time that is billed for a worker, in seconds.
    billed_least_s: float = 60.0


@dataclass(frozen=True)
class Traits:
    """Properties of a provider. The defaults make no assumptions about the backend."""

    #: True if workers run here, without a queue or costs. Schedulers listen on loopback.
    on_this_machine: bool = False
    #: True if workers see the file system of the user's machine.
    shares_files: bool = False
    #: The backend stores cluster files and runs managers: see methods ``places`` and ``remote``.
    remote: bool = False
    #: True if ``scalable up`` asks first, because starting workers costs money or queue time.
    asks_first: bool = True
    #: True if starting a worker takes long enough to appear in plans.
    counts_startup: bool = True
    starting: Starting = field(default_factory=Starting)
    #: Target option and value for a remote scheduler and managers. None: always local.
    services_option: tuple[str, str] | None = None
    #: Environment variable that is set inside the provider's jobs, or None.
    job_variable: str | None = None
    #: Maximum length of a tag. The default is the limit of Kubernetes and Google Cloud labels.
    longest_tag: int = 63
    #: Extras of this package that the provider needs.
    extras: tuple[str, ...] = ()
    #: Programs of other packages that the provider runs on the user's machine.
    programs: tuple[str, ...] = ()
