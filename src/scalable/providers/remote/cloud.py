"""Interface of a cloud: billed machines, and private files that only they can read.

Cloud objects do not own each other, and a cloud does not stop clusters. So all resources carry a
cluster's marks, the scheduler's files are created first and deleted last, and a machine stops with
its program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from scalable.model import ComponentSpec

# Marks --------------------------------------------------------------------------------------------

#: Id of the cluster.
CLUSTER = "scalable-cluster"
#: Name of the user, as :meth:`Cloud.owner` returns it.
OWNER = "scalable-owner"
#: Purpose of a machine or of files: one of the roles below.
ROLE = "scalable-role"
#: Id of the manager that a worker or a manager's machine belongs to.
MANAGER = "scalable-manager"
#: Component of a machine with workers.
TAG = "scalable-tag"
#: Name of a machine, from its request.
NAME = "scalable-name"

SCHEDULER, MANAGING, WORKERS = "scheduler", "manager", "workers"

#: Set in programs on a cloud's machines: the name of the provider.
MACHINE_OF = "SCALABLE_MACHINE_OF"


@dataclass(frozen=True)
class MachineRequest:
    """A machine to be started.

    Attributes
    ----------
    name
        Name that was never used before. A repeated request does not start a second machine.
    marks
        Mark names and values. The cloud reports them unchanged with the machine.
    program
        Arguments of ``python -m scalable.clusters.programs.machine PROVIDER``, which is the
        command of the container: ``scheduler``; ``manager`` and its id; or ``workers`` and the
        names of units.
    files
        Name of the program's files, as passed to :meth:`Cloud.put_files`.
    cpus, memory_bytes, gpus
        Resources of one unit. The machine has at least these for each of its units.
    units
        Names of the workers on the machine. Empty for a scheduler or a manager.
    image
        Container image.
    environment
        Environment variables, none of them secret.
    spot
        True if the machine may be preemptible.
    """

    name: str
    marks: Mapping[str, str]
    program: tuple[str, ...]
    files: str
    cpus: float
    memory_bytes: int
    gpus: int = 0
    units: tuple[str, ...] = ()
    image: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    spot: bool = False


class MachineState(Enum):
    """The state of a machine."""

    PENDING = "pending"
    RUNNING = "running"
    #: It was stopped, and still exists.
    ENDING = "ending"
    ENDED = "ended"


@dataclass(frozen=True)
class Machine:
    """A machine, as the cloud reports it.

    Attributes
    ----------
    id
        Id in the cloud.
    marks
        Its marks, including ``NAME``.
    units
        Names of the workers that it was started for.
    state
        Its state.
    reason
        Message for the user: why it is pending, or how it stopped.
    address, public_address
        Its private and public addresses. None while it has none.
    exit_code
        Exit code of its program, if the cloud reports it.
    from_outside
        True if the cloud or a person stopped it, which is not a crash.
    out_of_memory
        True if its program was killed because it used more memory than the machine has.
    shape, zone, spot
        Machine type, zone, and whether it is a spot machine, as far as they are known.
    made_at
        Time of its request in Unix seconds, or 0.0 if the cloud does not report it.
    """

    id: str
    marks: Mapping[str, str]
    units: tuple[str, ...]
    state: MachineState
    reason: str | None = None
    address: str | None = None
    public_address: str | None = None
    exit_code: int | None = None
    from_outside: bool = False
    out_of_memory: bool = False
    shape: str = ""
    zone: str = ""
    spot: bool = False
    made_at: float = 0.0


@dataclass(frozen=True)
class Refusal:
    """Answer to a request for a machine that the cloud cannot start at the moment.

    Attributes
    ----------
    reason
        Reason in plain words, with the zones and machine types that were tried.
    """

    reason: str


@dataclass(frozen=True)
class StoredFiles:
    """Private files in the cloud.

    Attributes
    ----------
    name
        Name under which they were stored.
    marks
        Mark names and values.
    files
        Contents by relative path.
    """

    name: str
    marks: Mapping[str, str]
    files: Mapping[str, str] = field(repr=False)


class Cloud(Protocol):
    """One account and region of a cloud, as one user can access it.

    All coroutines are idempotent: a resource that exists already, or is already gone, is not an
    error. They return within a minute or raise :class:`scalable.errors.ProviderError`. The error's
    ``transient`` is true if another attempt may succeed. Throttled requests are retried, with
    jitter and for a bounded time. The error for wrong credentials has one line.
    """

    @property
    def spot_share(self) -> float:
        """Share of spot machines among the machines with workers, from 0 to 1."""

    def units_on(self, component: ComponentSpec) -> int:
        """Return the number of a component's units that share one machine, without a request."""

    async def owner(self) -> str:
        """Return a name that identifies the user within the account."""

    async def prepare(self, cluster_id: str, marks: Mapping[str, str]) -> None:
        """Find or create the resources for machines: a network, its rules and roles.

        Created resources carry the marks.
        """

    async def run(self, requests: Sequence[MachineRequest]) -> Mapping[str, Machine | Refusal]:
        """Start machines, and map each request's name to its machine or refusal.

        A refusal means that there is no capacity. The method returns when the cloud has accepted
        the requests, not when the machines run. Other zones and machine types are tried before a
        request is refused.

        Raises
        ------
        ProviderError
            If a request can never succeed, or the cloud does not answer. :meth:`machines` then
            returns the machines that were already started.
        """

    async def machines(self, marks: Mapping[str, str]) -> list[Machine]:
        """Return all machines with these marks, with one paged request.

        The result includes machines that stopped recently.
        """

    async def stop(self, machines: Sequence[Machine]) -> None:
        """Stop machines, without waiting until they are gone.

        Their programs get SIGTERM, and half a minute to exit.
        """

    async def stop_units(self, machine: Machine, units: Sequence[str]) -> None:
        """Stop some units of a machine, while the others continue."""

    async def put_files(
        self, name: str, marks: Mapping[str, str], files: Mapping[str, str]
    ) -> None:
        """Store private files that only the user and the cluster's machines can read.

        Files of that name are replaced. No other program or user of the account's machines can read
        them, and they are encrypted at rest.
        """

    async def files(self, marks: Mapping[str, str]) -> list[StoredFiles]:
        """Return all files with these marks, with their contents."""

    async def delete_files(self, marks: Mapping[str, str]) -> list[str]:
        """Delete all files with these marks, immediately and permanently.

        Returns a description of each.
        """

    async def clean(self, marks: Mapping[str, str]) -> list[str]:
        """Delete resources that :meth:`prepare` created for the marked cluster, and unused ones.

        Returns a description of each resource.
        """

    async def leftovers(self, marks: Mapping[str, str]) -> Mapping[str, str]:
        """Map the ids of clusters without files to descriptions of their remaining resources.

        These are older resources that :meth:`prepare` created with these marks, and incomplete
        files.
        """

    async def output(self, machine: Machine, since: str) -> tuple[str, str]:
        """Return the output of a machine's program after position ``since``, and the next position.

        The first position is empty. The output of a stopped machine stays available for a while.
        """

    async def close(self) -> None:
        """Close all connections."""


class MachineSide(Protocol):
    """The cloud from the perspective of a program on one of its machines.

    Methods may block for seconds.
    """

    def files(self) -> Mapping[str, str]:
        """Return the contents of the request's files, by relative path.

        After that, neither the environment nor the command line of this process contains them.
        """

    def address(self) -> str:
        """Return the machine's address within the cloud's network."""

    def stopped_units(self) -> frozenset[str]:
        """Return the units that were passed to :meth:`Cloud.stop_units`."""

    def notice(self) -> float | None:
        """Return the seconds until the cloud preempts the machine, or None without a notice.

        It is called every second, and again after SIGTERM, which is the notice in some clouds.
        After a notice, the units continue for this time instead of stopping immediately.
        """
