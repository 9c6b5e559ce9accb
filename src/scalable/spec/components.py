"""Components (resource profiles, whose names are the tags) and the tasks bound to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from scalable.spec.retrying import RetryPolicy
from scalable.units import parse_bytes

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
    """A range of worker counts, both ends included; ``maximum`` None means no upper bound."""

    minimum: int = 0
    maximum: int | None = None

    def __post_init__(self) -> None:
        if self.minimum < 0 or (self.maximum is not None and self.maximum < self.minimum):
            raise ValueError(
                f"minimum {self.minimum} and maximum {self.maximum} are not a range of workers"
            )

    @property
    def fixed(self) -> int | None:
        """The only count that the range allows; None if it allows several counts."""
        return self.minimum if self.minimum == self.maximum else None


@dataclass(frozen=True)
class ComponentSpec:
    """The resource profile of one pool's workers. Its ``name`` is the tag.

    Attributes
    ----------
    name
        The tag that calls are routed by.
    image
        Container image, or None to run without one.
    runtime
        Container runtime of this component, or None for the target's.
    cpus, memory, gpus
        Reservation of one worker; ``memory`` as it was written.
    slots
        Number of calls that a worker runs at once, unless the target says otherwise.
    mounts
        Host path -> path in the container.
    env
        Environment of the worker.
    preload_script
        Path of a script that runs before the worker starts.
    workers
        Allowed numbers of workers, or None if the manifest gives none.
    tags
        Labels for grouping in reports; calls are not routed by them.
    """

    name: str
    image: str | None = None
    runtime: str | None = None
    cpus: float = 1
    memory: str | None = None
    gpus: int = 0
    slots: int = 1
    mounts: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    preload_script: str | None = None
    workers: WorkerRange | None = None
    tags: tuple[str, ...] = ()

    @cached_property
    def memory_bytes(self) -> int | None:
        """Memory of one worker in bytes, or None."""
        return None if self.memory is None else parse_bytes(self.memory)

    def environment(self, slots: int) -> dict[str, str]:
        """Return a worker's environment: thread limits by cores and slots, and ``env``.

        Parameters
        ----------
        slots
            Number of calls that the worker runs at once.
        """
        threads = str(max(1, int(self.cpus // slots)))
        return {**dict.fromkeys(THREAD_VARIABLES, threads), **self.env}


@dataclass(frozen=True)
class TaskSpec:
    """A named kind of call, bound to a component, with expectations for planning.

    Attributes
    ----------
    name
        Name for ``client.submit(..., task=name)``.
    component
        Tag of the pool that runs it.
    cache
        Whether results are remembered: an equal call of a later run is not run again.
    outputs
        Names or paths of its results.
    count
        Expected number of calls.
    duration_s
        Expected running time of one call in seconds.
    memory
        Expected peak memory of one call, as it was written.
    after
        Tasks that must have ended before this one starts.
    retries
        Rule for further tries of its failed calls; None for no further try.
    """

    name: str
    component: str
    cache: bool = False
    outputs: tuple[str, ...] = ()
    count: int | None = None
    duration_s: float | None = None
    memory: str | None = None
    after: tuple[str, ...] = ()
    retries: RetryPolicy | None = None

    @cached_property
    def memory_bytes(self) -> int | None:
        """The expected peak memory of one call in bytes, or None."""
        return None if self.memory is None else parse_bytes(self.memory)

    @property
    def expected_work_s(self) -> float | None:
        """Expected worker-seconds of all calls, or None where the manifest does not say."""
        if self.count is None or self.duration_s is None:
            return None
        return self.count * self.duration_s
