"""A private Slurm on one machine: munge, a controller and nodes, all real, in one directory.

Nodes say that they are larger than the machine, and nothing enforces what jobs ask for: this is for
trying how work is queued, started and ended, not for computing.

Nothing of it needs systemd or root, or touches another Slurm: daemons and clients know the test bed
by ``SLURM_CONF`` alone. A daemon is recognised by that variable too, so a stale pid file can never
lead to somebody else's process.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import slurm_accounting

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
INSTALL = (
    "apt-get install --no-install-recommends slurm-wlm slurmctld slurmd slurm-client munge podman"
)
DEFAULT_DIRECTORY = Path("~/.cache/scalable/slurm-testbed")

#: What the kernel calls our daemons. The batch steps (slurmstepd) outlive the daemon of their node.
DAEMONS = frozenset({"munged", "slurmctld", "slurmscriptd", "slurmd", "slurmstepd"})
ACCOUNTING_DAEMONS = frozenset({"mariadbd", "slurmdbd"})
#: Slurm sets it in the environment of what runs on a node, and not in a shell on the login node.
ON_A_NODE = "SLURMD_NODENAME"
#: The kernel's limit is 108 characters; the longest socket is that of a step, in its node's spool.
LONGEST_DIRECTORY = 107 - len("/spool/node100/node100_1234567.4294967291")
HEADER = "# A private Slurm, written by scripts/slurm-testbed.\n"

CONFIGURATION = """\
ClusterName=testbed
SlurmctldHost={host}({address})
SlurmctldPort={controller_port}
{binding}SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/run/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/run/slurmctld.pid
SlurmdPidFile={directory}/run/slurmd-%n.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmdLogFile={directory}/log/slurmd-%n.log
SchedulerParameters=sched_interval=2,sched_min_interval=100000,bf_interval=2,batch_sched_delay=0
MinJobAge=3600
KillWait={kill_wait}
ReturnToService=1
MailProg=/bin/true
JobAcctGatherType=jobacct_gather/linux
{accounting}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobCompType=jobcomp/filetxt
JobCompLoc={directory}/log/jobcomp.txt
{nodes}
PartitionName=DEFAULT Nodes=ALL DefMemPerCPU=1000 PriorityTier=5 PreemptMode=OFF
PartitionName=batch Default=YES MaxTime=7-0 DefaultTime=01:00:00
PartitionName=short MaxTime=00:30:00 DefaultTime=00:10:00
PartitionName=tight MaxTime=00:01:00 DefaultTime=00:01:00
PartitionName=urgent MaxTime=7-0 DefaultTime=01:00:00 PriorityTier=9
PartitionName=scavenge MaxTime=7-0 DefaultTime=01:00:00 PriorityTier=1 PreemptMode=CANCEL
PartitionName=requeue MaxTime=7-0 DefaultTime=01:00:00 PriorityTier=1 PreemptMode=REQUEUE
"""


class SlurmTestbedError(RuntimeError):
    """The test bed cannot do what was asked."""


class SlurmTestbed:
    """A private Slurm in a directory of its own; two of them know nothing of each other.

    Parameters
    ----------
    directory
        Where everything of it lies: new, empty, or that of an earlier test bed.
    nodes
        How many nodes, called node1, node2 and so on.
    cpus, memory
        What each node says that it has; memory in MB.
    kill_wait
        Seconds between the two signals that end a job at its time limit.
    accounting
        Whether it has accounting: jobs then need an association, and `sacct` shows what they took.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
        *,
        nodes: int = 4,
        cpus: int = 64,
        memory: int = 200_000,
        kill_wait: int = 5,
        accounting: bool = False,
    ) -> None:
        if not 1 <= nodes <= 100:
            raise SlurmTestbedError(f"{nodes} nodes: 1 to 100 are possible")
        self.directory = Path(directory).expanduser().resolve()
        self.nodes = tuple(f"node{number}" for number in range(1, nodes + 1))
        self.cpus = cpus
        self.memory = memory
        self.kill_wait = kill_wait
        self.accounting = accounting
        self._database: subprocess.Popen[bytes] | None = None

    # Its life

    @property
    def running(self) -> bool:
        """Whether its controller and munge run."""
        return {"munged", "slurmctld"} <= set(self.daemons().values())

    def start(self) -> bool:
        """Start it, and wait until all nodes are idle.

        Returns
        -------
        bool
            False if it runs already.

        Raises
        ------
        SlurmTestbedError
            Programs are missing, the directory cannot be used, or a daemon failed; nothing is left
            running, and the ends of the logs are in the error's notes.
        """
        if self.running:
            return False
        if missing := missing_programs(accounting=self.accounting):
            install = slurm_accounting.INSTALL if self.accounting else INSTALL
            raise SlurmTestbedError(
                f"{', '.join(missing)} not found; on Debian or Ubuntu, as root: {install}"
            )
        self.stop()  # what an earlier one left behind
        self._write_files()
        try:
            self._launch_munge()
            if self.accounting:
                self._launch_accounting()
            # -c forgets jobs and states of an earlier test bed in the same directory
            self._launch("slurmctld", "-c")
            for node in self.nodes:
                self._launch(f"slurmd-{node}", "-c", "-N", node)
            self._wait_for_idle_nodes()
        except BaseException as error:
            error.add_note(self.log_tails())
            self.stop()
            raise
        return True

    def stop(self) -> bool:
        """Cancel its jobs and end its daemons.

        Returns
        -------
        bool
            False if nothing was running.
        """
        if not self.daemons():
            return False
        if self.running:
            self._cancel_jobs()
        # All together: one after the other they wait for each other's answers. Nothing that they
        # would save is read again, and a batch step without a controller would try for minutes.
        for ending, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 30.0)):
            _signal(self.daemons(), ending)
            if _wait(lambda: not self.daemons(), patience):
                if self._database is not None:
                    self._database.wait(30.0)
                return True
        raise SlurmTestbedError(f"could not end {self.daemons()} in {self.directory}")

    def environment(self) -> dict[str, str]:
        """Return what leads Slurm's commands to this test bed."""
        return {"SLURM_CONF": str(self.directory / "slurm.conf")}

    def daemons(self) -> dict[int, str]:
        """Return its daemons, and what its jobs run: the program's name by process id.

        Of its jobs only what they started with their environment, which containers are not.
        """
        mark = f"SLURM_CONF={self.environment()['SLURM_CONF']}".encode()
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                variables = (process / "environ").read_bytes().split(b"\0")
                name = (process / "comm").read_text().strip()
            except OSError:  # it has just ended, or is somebody else's
                continue
            on_a_node = any(variable.startswith(f"{ON_A_NODE}=".encode()) for variable in variables)
            ours = name in DAEMONS or name in ACCOUNTING_DAEMONS
            if mark in variables and (ours or on_a_node):
                found[int(process.name)] = name
        return found

    # What it is asked and told

    def command(self, *words: str, timeout: float = 30.0) -> str:
        """Run one of Slurm's commands on this test bed and return its output.

        Raises
        ------
        SlurmTestbedError
            The command failed, or took longer than `timeout` seconds.
        """
        try:
            done = subprocess.run(
                words, env=self._environ(), stdin=subprocess.DEVNULL, text=True,
                capture_output=True, timeout=timeout, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise SlurmTestbedError(f"{shlex.join(words)}: no answer in {timeout} s") from error
        if done.returncode:
            raise SlurmTestbedError(f"{shlex.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def jobs(self) -> list[str]:
        """Return a line for each job that waits, runs or ends: id, name, state, reason."""
        return self.command("squeue", "-h", "-r", "-o", "%i %j %T %R").splitlines()

    def job_states(self, job: str) -> dict[str, str]:
        """Return the state of a job, or of each element of an array, also after its end."""
        lines = self.command("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%i %T")
        return dict(line.split(maxsplit=1) for line in lines.splitlines())

    def manage(self, *words: str) -> None:
        """Change accounts, limits or users with `sacctmgr`; no change is no error."""
        try:
            self.command("sacctmgr", "--immediate", *words)
        except SlurmTestbedError as error:
            if "Nothing" not in str(error):  # "Nothing new added", "Nothing modified"
                raise

    def cancel_jobs(self) -> None:
        """Cancel all jobs."""
        self.command("scancel", "--user", _user())

    def node_states(self) -> dict[str, str]:
        """Return the state of each node, in Slurm's words."""
        lines = self.command("sinfo", "-h", "-N", "-p", "batch", "-o", "%N %T").splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    def node_down(self, node: str) -> None:
        """Declare a node broken: its jobs end with NODE_FAIL or wait to be started again."""
        self._update(nodename=node, state="DOWN", reason="testbed")

    def node_up(self, node: str) -> None:
        """Bring a node back."""
        self._update(nodename=node, state="RESUME")

    def drain(self, partition: str, state: str = "DRAIN") -> None:
        """Close a partition.

        Parameters
        ----------
        partition
            Its name.
        state
            DRAIN refuses new jobs, and starts those that wait; DOWN accepts jobs and starts none;
            INACTIVE does neither. What runs goes on.
        """
        self._update(partitionname=partition, state=state)

    def undrain(self, partition: str) -> None:
        """Open a partition again."""
        self._update(partitionname=partition, state="UP")

    def stop_controller(self) -> None:
        """End the controller, which saves its state; jobs go on running."""
        _signal(self._controller(), signal.SIGTERM)
        if not _wait(lambda: not self._controller(), 30.0):
            raise SlurmTestbedError(f"slurmctld does not end\n{self.log_tails()}")

    def start_controller(self) -> None:
        """Start the controller where it left off, and wait until it answers."""
        if not self._controller():
            self._launch("slurmctld")
        if not _wait(self._states_or_nothing, 30.0):
            raise SlurmTestbedError(f"slurmctld does not answer\n{self.log_tails()}")

    def restart_controller(self) -> None:
        """Stop and start the controller."""
        self.stop_controller()
        self.start_controller()

    def log_tails(self, lines: int = 15) -> str:
        """Return the last lines of each daemon's log."""
        logs = sorted((self.directory / "log").glob("*.log"))
        ends = {log: log.read_text(errors="replace").splitlines()[-lines:] for log in logs}
        return "\n".join("\n".join([f"--- {log}", *end]) for log, end in ends.items() if end)

    # How

    def _environ(self) -> dict[str, str]:
        """Return the environment without what leads to another Slurm, or into a job of it."""
        own = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH_"))}
        database = slurm_accounting.environment(self.directory) if self.accounting else {}
        return own | {"PATH": _search_path()} | self.environment() | database

    def _write_files(self) -> None:
        configuration = Path(self.environment()["SLURM_CONF"])
        _check_directory(self.directory, configuration)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        configuration.write_text(HEADER + self._configuration())
        for name in ("run", "log", "state", "spool"):
            (self.directory / name).mkdir(mode=0o700, exist_ok=True)
        key = self.directory / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))

    def _configuration(self) -> str:
        host = socket.gethostname().split(".")[0]
        address, binding = _address(host)
        controller_port, accounting_port, *ports = free_ports(2 + len(self.nodes))
        accounting = slurm_accounting.NONE
        if self.accounting:
            accounting = slurm_accounting.write_configuration(
                self.directory, accounting_port, _user()
            )
        size = f"CPUs={self.cpus} RealMemory={self.memory} State=UNKNOWN"
        return CONFIGURATION.format(
            host=host,
            address=address,
            binding=binding,
            controller_port=controller_port,
            directory=self.directory,
            user=_user(),
            kill_wait=self.kill_wait,
            accounting=accounting,
            nodes="\n".join(
                f"NodeName={node} NodeHostname={host} NodeAddr={address} Port={port} {size}"
                for node, port in zip(self.nodes, ports, strict=True)
            ),
        )

    def _launch_munge(self) -> None:
        run = self.directory / "run"
        files = {
            "key-file": self.directory / "munge.key",
            "socket": run / "munge.socket",
            "pid-file": run / "munged.pid",
            "log-file": self.directory / "log" / "munged.log",
            "seed-file": run / "munged.seed",
        }
        # munged wants a socket that everybody can reach, in directories that only root can change;
        # this one is for one user, in a directory that nobody else can enter: hence --force.
        options = [f"--{name}={path}" for name, path in files.items()]
        self._launch("munged", "--force", "--num-threads=4", *options)

    def _launch_accounting(self) -> None:
        """Start the database and slurmdbd, with an account for the user of the test bed."""
        try:
            server = slurm_accounting.start_database(self.directory, _user(), self._environ())
            self._database = server
        except (subprocess.SubprocessError, OSError) as error:
            raise SlurmTestbedError(f"mariadbd did not start: {error}") from error
        ready = _wait(
            lambda: slurm_accounting.is_ready(self.directory) or server.poll() is not None, 60.0
        )
        if not ready or server.poll() is not None:
            raise SlurmTestbedError(f"mariadbd does not answer\n{self.log_tails()}")
        self._launch("slurmdbd")
        if not _wait(self._accounting_answers, 60.0):
            raise SlurmTestbedError(f"slurmdbd does not answer\n{self.log_tails()}")
        account, user = slurm_accounting.ACCOUNT, _user()
        self.manage("add", "cluster", "testbed")
        self.manage("add", "account", account)
        self.manage("add", "user", user, f"account={account}")
        self.manage("modify", "user", user, "set", f"defaultaccount={account}")

    def _accounting_answers(self) -> bool:
        try:
            self.command("sacctmgr", "--noheader", "list", "cluster")
        except SlurmTestbedError:
            return False
        return True

    def _launch(self, name: str, *options: str) -> None:
        """Start a daemon; it returns when the daemon has gone to the background."""
        program = name.partition("-")[0]
        # To a file: the daemon keeps its first output open, a pipe to us would never end.
        with (self.directory / "log" / f"{name}-start.log").open("w") as output:
            try:
                subprocess.run(
                    [program, *options], env=self._environ(), cwd=self.directory, timeout=30.0,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    start_new_session=True, check=True,
                )  # fmt: skip
            except (subprocess.SubprocessError, OSError) as error:
                raise SlurmTestbedError(f"{name} did not start: {error}") from error

    def _wait_for_idle_nodes(self) -> None:
        idle = dict.fromkeys(self.nodes, "idle")
        if not _wait(lambda: self._states_or_nothing() == idle, 60.0):
            states = self._states_or_nothing() or "the controller does not answer"
            raise SlurmTestbedError(f"not all nodes are idle after 60 s: {states}")

    def _states_or_nothing(self) -> dict[str, str]:
        try:
            return self.node_states()
        except SlurmTestbedError:
            return {}

    def _cancel_jobs(self) -> None:
        """Let jobs end in their own way; those that do not are killed with the daemons."""
        try:
            self.cancel_jobs()
            _wait(lambda: not self.jobs(), self.kill_wait + 10.0)
        except SlurmTestbedError:
            pass  # a controller that does not answer is to be ended all the same

    def _controller(self) -> dict[int, str]:
        names = ("slurmctld", "slurmscriptd")
        return {pid: name for pid, name in self.daemons().items() if name in names}

    def _update(self, **changes: str) -> None:
        self.command("scontrol", "update", *(f"{key}={value}" for key, value in changes.items()))


def missing_programs(*, accounting: bool = False) -> list[str]:
    """Return which programs of Slurm and munge, and for accounting of MariaDB, are missing."""
    path = _search_path()
    programs = (*PROGRAMS, *slurm_accounting.PROGRAMS) if accounting else PROGRAMS
    missing = [program for program in programs if not shutil.which(program, path=path)]
    return missing or (slurm_accounting.missing_files() if accounting else [])


def free_ports(count: int) -> list[int]:
    """Return free ports, all from below those that the system gives to whoever asks for any.

    A port from there could be taken by somebody's connection while the controller is restarted.
    """
    ports: list[int] = []
    for port in random.sample(range(15_000, 32_000), 2_000):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise SlurmTestbedError(f"no {count} free ports between 15000 and 32000")


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _search_path() -> str:
    """Return PATH with the directories of daemons, which users of Debian do not have on it."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"


def _address(host: str) -> tuple[str, str]:
    """Return the address of all daemons, and the line that binds them to it.

    Slurm binds to all addresses, or to where the name of the machine leads: for a test bed only if
    that is a loopback address, as it is on most. Munge's key guards the ports in either case.
    """
    try:
        address = socket.gethostbyname(host)
    except OSError:
        address = ""
    if address.startswith("127."):
        return address, "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n"
    return "127.0.0.1", ""


def _check_directory(directory: Path, configuration: Path) -> None:
    """Refuse a directory that holds something else, or that Slurm or munge cannot use."""
    if any(character.isspace() or character in "#%," for character in str(directory)):
        raise SlurmTestbedError(f"{directory}: Slurm cannot use such a path; choose a plain one")
    if len(str(directory)) > LONGEST_DIRECTORY:
        raise SlurmTestbedError(
            f"{directory}: too long for sockets; at most {LONGEST_DIRECTORY} characters"
        )
    if not directory.exists():
        return
    if not directory.is_dir() or (not configuration.exists() and any(directory.iterdir())):
        raise SlurmTestbedError(f"{directory} holds something else; choose a new directory")
    if configuration.exists() and not configuration.read_text().startswith(HEADER):
        raise SlurmTestbedError(f"{directory} holds another Slurm; choose a new directory")
    status = directory.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise SlurmTestbedError(f"{directory}: others may write there; run: chmod 700 {directory}")


def _signal(processes: Iterable[int], ending: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, ending)


def _wait(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
