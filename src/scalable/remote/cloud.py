"""The interface of a cloud: machines that cost money, and private files that only they can read.

A cloud has no objects that own each other, and nothing there ends a cluster by itself. So each
thing carries the marks of its cluster, the files of the scheduler are made first and deleted last,
and each machine ends with its program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from scalable.spec import ComponentSpec

# Marks ------------------------------------------------------------------------------------------

#: Id of the cluster.
CLUSTER = "scalable-cluster"
#: Text of the user, as :meth:`Cloud.owner` returns it.
OWNER = "scalable-owner"
#: Purpose of a machine, or of files: one of the roles below.
ROLE = "scalable-role"
#: Id of the manager that a worker or a manager's machine belongs to.
MANAGER = "scalable-manager"
#: Component of a machine with workers.
TAG = "scalable-tag"
#: Name of a machine, as its request gave it.
NAME = "scalable-name"

SCHEDULER, MANAGING, WORKERS = "scheduler", "manager", "workers"

#: Environment variable that is set in programs on a cloud's machines: the name of the provider.
MACHINE_OF = "SCALABLE_MACHINE_OF"


@dataclass(frozen=True)
class MachineRequest:
    """A machine to be started.

    Attributes
    ----------
    name
        Name that no other machine has had; a request that is repeated starts no second machine.
    marks
        Mark -> text. All are found again at the machine, exactly as they are here.
    program
        Arguments of ``python -m scalable.programs.machine PROVIDER``, which is the command of the
        container: ``scheduler``; ``manager`` and its id; or ``workers`` and the names of units.
    files
        Name of the files that the program reads, as they were given to :meth:`Cloud.put_files`.
    cpus, memory_bytes, gpus
        Resources of one unit; the machine has at least as much for each of its units.
    units
        Names of the workers on the machine; empty for a scheduler or a manager.
    image
        Container image.
    environment
        Variable -> value, none of them secret.
    spot
        Whether the machine may be one that the cloud can take back.
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
    #: It was told to end, and is still there.
    ENDING = "ending"
    ENDED = "ended"


@dataclass(frozen=True)
class Machine:
    """A machine, as the cloud reports it.

    Attributes
    ----------
    id
        Id that the cloud has given it.
    marks
        Its marks, with ``NAME``.
    units
        Names of the workers that it was started for.
    state
        Its state.
    reason
        Text for the user: why it waits, or how it ended.
    address, public_address
        Its addresses within the cloud's network, and from outside; None while it has none.
    exit_code
        Exit code of its program, where the cloud tells it.
    from_outside
        Whether the cloud or a person ended it, so that the end is no crash.
    out_of_memory
        Whether its program was ended because it used more memory than the machine has.
    shape, zone, spot
        Type of machine, zone, and whether it is a spot machine, as far as they are known.
    made_at
        Time at which it was requested, in Unix seconds; 0.0 if the cloud does not tell.
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
    """The answer to a request for a machine that the cloud cannot start now.

    Attributes
    ----------
    reason
        Reason in plain words, with what was tried: zones, types of machine.
    """

    reason: str


@dataclass(frozen=True)
class StoredFiles:
    """Private files in the cloud.

    Attributes
    ----------
    name
        Name by which they were put there.
    marks
        Mark -> text.
    files
        Relative path -> text.
    """

    name: str
    marks: Mapping[str, str]
    files: Mapping[str, str] = field(repr=False)


class Cloud(Protocol):
    """One account and region of a cloud, as one user sees it.

    All coroutines are idempotent: what exists already, and what is gone already, is no error. They
    end within a minute and raise :class:`scalable.errors.ProviderError`, whose ``transient`` says
    whether another attempt may succeed. Requests that the cloud throttles are repeated, with jitter
    and for a bounded time. Wrong credentials are an error of one line.
    """

    @property
    def spot_share(self) -> float:
        """Share of the machines with workers that are spot machines, from 0 to 1."""

    def units_on(self, component: ComponentSpec) -> int:
        """Return the number of units of a component that share one machine; ask nothing."""

    async def owner(self) -> str:
        """Return a text that names the user, and no other user of the account."""

    async def prepare(self, cluster_id: str, marks: Mapping[str, str]) -> None:
        """Find, or create, what machines need beside themselves: a network, its rules, roles.

        What is created carries the marks.
        """

    async def run(self, requests: Sequence[MachineRequest]) -> Mapping[str, Machine | Refusal]:
        """Start machines; return name -> machine, or the refusal for want of capacity.

        The call returns when the cloud has taken the requests, not when the machines run. Other
        zones and types of machine are tried before a request is refused.

        Raises
        ------
        ProviderError
            When a request can never succeed, or the cloud does not answer. What was started before
            is found by :meth:`machines`.
        """

    async def machines(self, marks: Mapping[str, str]) -> list[Machine]:
        """Return all machines with these marks, also those that ended lately; one paged request."""

    async def stop(self, machines: Sequence[Machine]) -> None:
        """Tell machines to end; return without waiting for their ends.

        Their programs get SIGTERM, and half a minute to end.
        """

    async def stop_units(self, machine: Machine, units: Sequence[str]) -> None:
        """Tell a machine to end some of its units while others go on."""

    async def put_files(
        self, name: str, marks: Mapping[str, str], files: Mapping[str, str]
    ) -> None:
        """Keep private files, which the user and the machines of the cluster alone can read.

        Files of that name are replaced. No other program or user of the account's machines can read
        them, and they are encrypted at rest.
        """

    async def files(self, marks: Mapping[str, str]) -> list[StoredFiles]:
        """Return all files with these marks, with their texts."""

    async def delete_files(self, marks: Mapping[str, str]) -> list[str]:
        """Delete all files with these marks, at once and for good; return a description of each."""

    async def clean(self, marks: Mapping[str, str]) -> list[str]:
        """Remove what :meth:`prepare` created for the cluster with these marks, and what no cluster
        uses any more; return a description of each thing.
        """

    async def leftovers(self, marks: Mapping[str, str]) -> Mapping[str, str]:
        """Return cluster id -> description of what :meth:`prepare` has created with these marks for
        clusters that have no files, some time ago, and of files that were never whole.
        """

    async def output(self, machine: Machine, since: str) -> tuple[str, str]:
        """Return the output of a machine's program after a mark, and the next mark.

        The first mark is empty. A machine that has ended still has its output for a while.
        """

    async def close(self) -> None:
        """Close all connections."""


class MachineSide(Protocol):
    """The cloud as a program on one of its machines sees it. Methods may block for seconds."""

    def files(self) -> Mapping[str, str]:
        """Return relative path -> text of the files that the request named.

        Afterwards neither the environment nor the command line of this process contains them.
        """

    def address(self) -> str:
        """Return the machine's address within the cloud's network."""

    def stopped_units(self) -> frozenset[str]:
        """Return the units that :meth:`Cloud.stop_units` has named."""

    def notice(self) -> float | None:
        """Return the seconds until the cloud takes the machine back; None without a notice.

        It is asked each second, and again after SIGTERM, which is the notice in some places: then
        the units go on for as long as this tells, instead of being told to end at once.
        """
