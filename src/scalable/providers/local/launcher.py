"""Launcher of worker processes on this machine, for sessions and detached clusters."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
from distributed.comm.addressing import get_address_host
from distributed.utils import get_ip

from scalable import settings
from scalable.containers import (
    ContainerRequest,
    container_name,
    node_value,
    prove,
    render_command,
    render_removal,
    request_for,
    run_bounded,
    setup_entry,
)
from scalable.errors import ClusterError, ProviderError
from scalable.files import private_directory, read_tail, working_directory, write_private
from scalable.manager.launcher import Observation, UnitName, UnitState
from scalable.manager.pools import ManagerSite, Pool, config_path
from scalable.model import DeploymentSpec
from scalable.protocol.code import interpreter_options
from scalable.protocol.forking import WORKER_MODULE, fits, worker_command
from scalable.protocol.operations import OUT_OF_MEMORY
from scalable.providers.local.fork_server import (
    ForkServerError,
    ForkServerProcess,
    StartRequest,
    obstacle,
    start_of,
    supported,
)
from scalable.providers.local.processes import (
    KILL_S,
    TERMINATE_S,
    ExecutedChild,
    ForkedChild,
    RunningProgram,
    WorkerProcess,
    file_name,
    find_scratch,
    make_scratch,
    programs,
)
from scalable.providers.local.render import (
    end_of,
    is_transient,
    own_paths,
    process_options,
    workflow_directory,
)
from scalable.worker.config import SCRATCH, WorkerConfig, security_fields, serialized_config
from scalable.worker.parent_watch import remove_scratch
from scalable.worker.process_worker import ProcessWorker

# Units --------------------------------------------------------------------------------------------

STOPPED_GRACE_S = 10.0
REMOVAL_S = 15.0


@dataclass(frozen=True)
class Belongings:
    """Files and container of a worker, removed after its process has exited."""

    #: Directories that only this worker uses.
    scratch: tuple[Path, ...]
    #: File with the worker's output.
    log: Path
    #: Memory limit in bytes, 0 for none. It is shown if the worker ran out of memory.
    memory_limit: int
    #: Command that removes its container.
    removal: list[str] | None = None


@dataclass(frozen=True)
class End:
    """Reason for a worker's exit, and the last 8 KiB of its output."""

    reason: str
    last_output: str
    out_of_memory: bool = False


class LocalUnit:
    """A worker on this machine, from its start until its container and files are removed.
    A thread does the blocking work, so :meth:`observe` never blocks. ``start`` may block, and
    raises OSError or ValueError. ``on_end`` runs in the thread. ``started`` fails with a
    ProviderError if the process cannot start. ``end`` is None until the removal.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], WorkerProcess],
        belongings: Belongings,
        on_end: Callable[[], None],
    ) -> None:
        self.name = name
        self.started: Future[None] = Future()
        self.end: End | None = None
        self._start = start
        self._belongings = belongings
        self._on_end = on_end
        self._process: WorkerProcess | None = None
        self._ended: Future[None] = Future()
        self._told_to_stop = False
        self._stopped_since: float | None = None
        for future in (self.started, self._ended):
            future.set_running_or_notify_cancel()  # a cancelled waiter must not cancel the future

    def begin(self) -> None:
        """Start the worker in a thread. The future ``started`` is done when its process runs."""
        threading.Thread(target=self._run, name=f"scalable worker {self.name}", daemon=True).start()

    def _run(self) -> None:
        try:
            process = self._process = self._start()
        except (OSError, ValueError) as error:
            self._remove_scratch()
            reason = f"worker {self.name} cannot be started: {error}"
            self.end = End(reason, "")
            self._ended.set_result(None)
            refused = ProviderError(reason, transient=is_transient(error))
            refused.__cause__ = error
            self.started.set_exception(refused)
            return
        if self._told_to_stop:
            process.terminate()
        self.started.set_result(None)
        process.wait()
        try:
            self._clear_away(process)
        except ProviderError as error:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)
        self._on_end()

    def _clear_away(self, process: WorkerProcess) -> None:
        process.end()
        if self._belongings.removal is not None:
            run_bounded(self._belongings.removal, REMOVAL_S)
        code = process.returncode
        reason = "it ended" if code is None else end_of(code, self._belongings.memory_limit)
        logger.debug("worker %s (process %d) has exited: %s", self.name, process.pid, reason)
        last_output = read_tail(self._belongings.log)
        self._remove_scratch()
        self.end = End(reason, last_output, code == OUT_OF_MEMORY)

    def _remove_scratch(self) -> None:
        for scratch in self._belongings.scratch:
            remove_scratch(str(scratch))

    def observe(self) -> Observation:
        """Return the state without blocking. A process suspended for 10 s counts as stopped."""
        if self.end is not None:
            memory = self.end.out_of_memory
            return Observation(UnitState.ENDED, self.end.reason, out_of_memory=memory)
        if self._process is None:
            return Observation(UnitState.PENDING, "its process starts")
        now = time.monotonic()
        stopped = self._process.is_stopped()
        self._stopped_since = (self._stopped_since or now) if stopped else None
        if self._stopped_since is not None and now - self._stopped_since > STOPPED_GRACE_S:
            reason = f"a signal kept it stopped for {STOPPED_GRACE_S:g} s"
            return Observation(UnitState.ENDED, reason)
        return Observation(UnitState.RUNNING)

    def last_output(self) -> str:
        return read_tail(self._belongings.log) if self.end is None else self.end.last_output

    def terminate(self) -> None:
        """Send SIGTERM to the process, now or once it has started."""
        self._told_to_stop = True
        if self._process is not None:
            self._process.terminate()

    async def stop(self) -> None:
        """Stop the process (SIGKILL after 3 s), and wait until container and files are gone.
        Raise ProviderError if the process does not exit.
        """
        self.terminate()
        ended = asyncio.wrap_future(self._ended)
        await asyncio.wait([ended], timeout=TERMINATE_S)
        if not ended.done() and self._process is not None:
            logger.debug("worker %s did not stop in time: it is killed", self.name)
            self._process.kill()
        if not ended.done():
            removal = 0.0 if self._belongings.removal is None else REMOVAL_S
            await asyncio.wait([ended], timeout=2 * KILL_S + removal)
        if not ended.done():
            raise ProviderError(
                f"worker {self.name} was killed but has not stopped after {2 * KILL_S:g} s"
            )
        ended.result()


# Launcher -----------------------------------------------------------------------------------------

logger = logging.getLogger("scalable.providers")

#: Number of stopped workers whose last output is kept.
ENDS_KEPT = 100
#: Maximum number of fork servers that a launcher starts, one after the other. When the last is
#: lost, workers are started without a fork server.
SERVERS = 3


@dataclass(frozen=True)
class WorkerProgram:
    """Program of one worker, to be forked or started in a new interpreter."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    #: Sent through a pipe. The worker exits when this process closes the pipe. None: no pipe.
    config: WorkerConfig | None
    container: ContainerRequest | None
    #: Scripts to run before the worker starts.
    preload: tuple[str, ...]
    #: Start of the command line if there is no container: setup words, then the interpreter.
    entry: tuple[str, ...] = ()
    python: str = sys.executable


class ProcessLauncher:
    """Launcher of worker processes that exit with this process.
    Each worker has its own POSIX session, and gets the cluster's credentials through a pipe. It is
    forked from the fork server if it then behaves as in a new interpreter. :meth:`close` stops the
    server, even one passed in. The reconciler sets ``on_change``, which is called from any thread.
    """

    #: Number of workers that may start at the same time. A starting worker occupies a core.
    at_once = 4 * (os.cpu_count() or 1)

    def __init__(self, site: ManagerSite, server: ForkServerProcess | None = None) -> None:
        self.on_change: Callable[[], None] | None = None
        #: Secret values by tag and variable.
        self.secrets: Mapping[str, Mapping[str, str]] = {}
        self._site = site
        self._units: dict[UnitName, LocalUnit] = {}
        self._ends: dict[UnitName, End] = {}
        self._server = server
        self._servers = [] if server is None else [server]
        self._forks = supported()
        self._changing_server = threading.Lock()
        self._closed = False

    # Starting -----------------------------------------------------------------------------------

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        """Start a worker for each entry. Return when the processes run, before they connect."""
        begun: list[LocalUnit] = []
        for name, entry in entries.items():
            if name not in self._units:
                unit = self._units[name] = self._unit(str(name), entry["options"])
                unit.begin()
                begun.append(unit)
        await started(begun)

    async def adopt(self) -> dict[UnitName, str]:
        """Return an empty dictionary, since workers exit with the process that launched them."""
        return {}

    def _unit(self, name: str, options: Mapping[str, Any]) -> LocalUnit:
        """Create a worker's directories and its unit, without starting its process."""
        scratch: Path | None = None
        try:
            scratch = make_scratch(self._site.cluster_id, name)
            log = self._log(name, scratch)
            log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            container = _container(options["container"], name, scratch)
            program = self._program(name, options, scratch, container)
        except (OSError, ValueError, ClusterError) as error:
            remove_scratch("" if scratch is None else str(scratch))
            raise ProviderError(
                f"worker {name} cannot be started: {error}", transient=is_transient(error)
            ) from error
        removal = None if container is None else render_removal(container)
        belongings = Belongings((scratch,), log, options["memory_limit"], removal)
        return LocalUnit(name, lambda: self._start(program, log), belongings, self._changed)

    def _program(
        self,
        name: str,
        options: Mapping[str, Any],
        scratch: Path,
        container: ContainerRequest | None,
    ) -> WorkerProgram:
        config = dataclasses.replace(
            self._config(options),
            name=name,
            local_directory=str(scratch),
            preload=tuple(options["preload"]),
        )
        environment = {} if container else options["env"]
        return WorkerProgram(
            name, (), environment, config, container, config.preload, *_interpreter(options)
        )

    def _config(self, options: Mapping[str, Any]) -> WorkerConfig:
        """Return the configuration shared by the workers of a pool."""
        site, container = self._site, options["container"]
        # An image has its own modules. From this machine it gets only the workflow's directory.
        alone = options["python"] or (container is not None and container.host_python is None)
        return WorkerConfig(
            scheduler=site.scheduler,
            name="",
            nthreads=options["nthreads"],
            resources=options["resources"],
            memory_limit=options["memory_limit"],
            sys_path=site.sys_path[:1] if alone else site.sys_path,
            security=security_fields(site.security),
            manager=site.manager,
            secrets=self.secrets.get(next(iter(options["resources"])), {}),
            dask_config=serialized_config(),
        )

    def _log(self, name: str, scratch: Path) -> Path:
        logs = self._site.log_dir
        return scratch / "worker.log" if logs is None else logs / f"{file_name(name)}.log"

    # Processes; these methods run in the thread of a unit ----------------------------------------

    def _start(self, program: WorkerProgram, log: Path) -> WorkerProcess:
        if self._closed:
            raise OSError("the launcher of its pool was closed")
        outside = settings.outside_step(os.environ)
        given = {name: node_value(v, outside) for name, v in program.environment.items()}
        environment = {**outside, **given}
        reason = _obstacle(program, environment)
        with log.open("ab") as output:
            server = self._fork_server() if reason is None else None
            if server is not None:
                reason = _obstacle(program, environment, server)
            if server is not None and reason is None:
                try:
                    return self._fork(server, program, environment, output)
                except OSError as error:
                    reason = str(error)
                    self._give_up(server, reason)
            logger.debug("worker %s is started in a new interpreter: %s", program.name, reason)
            return self._execute(program, environment, output)

    def _fork_server(self) -> ForkServerProcess | None:
        """Return the fork server, starting it if needed, or None if none is used."""
        with self._changing_server:
            if self._server is None and self._forks and not self._closed:
                try:
                    self._server = ForkServerProcess()
                except OSError as error:
                    logger.warning("workers are started without a fork server: %s", error)
                    self._forks = False
                else:
                    self._servers.append(self._server)
            return self._server

    def _give_up(self, server: ForkServerProcess, reason: str) -> None:
        """Stop using an unfit server. A dead one is replaced, up to three servers in all."""
        with self._changing_server:
            if self._server is not server or server.unfit is None or self._closed:
                return
            self._server = None
            self._forks = not server.is_alive() and len(self._servers) < SERVERS
            if self._forks:
                logger.warning("fork server %d was lost: %s", server.pid, reason)
            else:
                logger.warning("later workers are started without a fork server: %s", reason)

    def _fork(
        self,
        server: ForkServerProcess,
        program: WorkerProgram,
        environment: Mapping[str, str],
        output: IO[bytes],
    ) -> WorkerProcess:
        config = None if program.config is None else dataclasses.asdict(program.config)
        start = start_of(server, environment, program.arguments, config)
        pid, pipe = server.fork(start, output)
        logger.debug("worker %s is process %d, forked", program.name, pid)
        try:
            process = psutil.Process(pid)
        except psutil.NoSuchProcess as error:  # the worker and the server are gone
            os.close(pipe)
            raise ForkServerError(str(error)) from error
        if config is None:
            os.close(pipe)
        return WorkerProcess(process, ForkedChild(server, pid, None if config is None else pipe))

    def _execute(
        self, program: WorkerProgram, environment: Mapping[str, str], output: IO[bytes]
    ) -> WorkerProcess:
        options = interpreter_options(working_directory())
        arguments = (*options, "-m", WORKER_MODULE, *program.arguments)
        command = [*program.entry, program.python, *arguments]
        if program.container is not None:
            command = render_command(program.container, [program.container.python, *arguments])
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if program.config is None else subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            # In a separate session, so that Ctrl-C reaches only this process.
            start_new_session=True,
        )
        logger.debug("worker %s is process %d, a new interpreter", program.name, child.pid)
        if child.stdin is not None and program.config is not None:
            with suppress(BrokenPipeError):  # the process has exited, which its unit notices
                child.stdin.write(program.config.to_line())
                child.stdin.flush()
        return WorkerProcess(psutil.Process(child.pid), ExecutedChild(child))

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    # Observing ----------------------------------------------------------------------------------

    def observe(self) -> dict[UnitName, Observation]:
        return {name: unit.observe() for name, unit in self._units.items()}

    def look_soon(self) -> None:
        """Do nothing, since each observation reads the current state."""

    async def logs(self, name: UnitName) -> str:
        """Return the last 8 KiB of a worker's output, kept for the last 100 stopped workers."""
        if name in self._units:
            return self._units[name].last_output()
        return self._ends[name].last_output if name in self._ends else ""

    # Stopping -----------------------------------------------------------------------------------

    async def stop(self, names: Sequence[UnitName]) -> None:
        """Stop workers, and kill those that do not exit within 3 s."""
        units = {name: self._units[name] for name in names if name in self._units}
        try:
            results = await asyncio.gather(
                *(unit.stop() for unit in units.values()), return_exceptions=True
            )
        finally:
            for name, unit in units.items():
                if unit.end is not None:
                    self._units.pop(name, None)
                    self._ends[name] = unit.end
            while len(self._ends) > ENDS_KEPT:
                del self._ends[next(iter(self._ends))]
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def close(self) -> None:
        """Stop the fork servers. Workers keep running unless they were stopped before."""
        with self._changing_server:
            self._closed = True
        for server in self._servers:
            await asyncio.to_thread(server.close)


async def started(units: Sequence[LocalUnit]) -> None:
    """Wait until the processes of all units run. Raises ProviderError if one cannot start."""
    waiting = [asyncio.wrap_future(unit.started) for unit in units]
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _obstacle(
    program: WorkerProgram, environment: Mapping[str, str], server: ForkServerProcess | None = None
) -> str | None:
    """Return why a worker cannot be forked from ``server`` (None: a new server), or None."""
    if program.entry or program.python != sys.executable:
        return "its component has setup or python"
    if not fits(worker_command(sys.executable, program.arguments)):
        return "its command line is too long"
    return obstacle(
        StartRequest(
            environment=environment,
            preload=program.preload,
            container=program.container is not None,
            interpreter=sys.executable,
            server_environment=os.environ if server is None else server.environment,
            server_interpreter=sys.executable if server is None else server.interpreter,
        )
    )


def _container(
    request: ContainerRequest | None, name: str, scratch: Path
) -> ContainerRequest | None:
    """Return the pool's container with one worker's name and scratch directory."""
    if request is None:
        return None
    mounts = {**request.mounts, str(scratch): str(scratch)}
    env = {variable: node_value(value, os.environ) for variable, value in request.env.items()}
    return dataclasses.replace(request, name=container_name(name), mounts=mounts, env=env)


def _interpreter(options: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return a command line's start: words for the setup lines, and the interpreter."""
    return setup_entry(options["setup"], "bash"), options["python"] or sys.executable


# Detached clusters --------------------------------------------------------------------------------


class DetachedLauncher(ProcessLauncher):
    """Launcher of workers that outlive this process. Their command lines identify them."""

    def __init__(self, site: ManagerSite, options: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(site)
        self._options = options
        self._files = {tag: config_path(site.directory, tag) for tag in options}
        self._written: set[Path] = set()

    async def adopt(self) -> dict[UnitName, str]:
        """Adopt processes started by an earlier process of this manager."""
        tags = {str(file): tag for tag, file in self._files.items()}
        # Several processes may have one worker's name. The oldest is the worker, or the client of
        # its container's runtime. The others were forked by a task, or run in the container.
        found = sorted(programs(self._site.directory), key=lambda p: p.process.create_time())
        adopted: dict[UnitName, str] = {}
        for program in found:
            path, *rest = program.arguments
            if path in tags and rest and rest[0] not in self._units:
                name = rest[0]
                adopted[name] = tags[path]
                unit = self._units[name] = self._adopted(name, program, tags[path])
                unit.begin()
        await started([self._units[name] for name in adopted])
        return adopted

    def _adopted(self, name: str, program: RunningProgram, tag: str) -> LocalUnit:
        options = self._options[tag]
        container: ContainerRequest | None = options["container"]
        removal = None
        if container is not None:
            removal = render_removal(dataclasses.replace(container, name=container_name(name)))
        belongings = Belongings(
            find_scratch(self._site.cluster_id, name),
            self._log(name, Path()),
            options["memory_limit"],
            removal,
        )
        return LocalUnit(name, lambda: WorkerProcess(program.process), belongings, self._changed)

    def _program(
        self,
        name: str,
        options: Mapping[str, Any],
        scratch: Path,
        container: ContainerRequest | None,
    ) -> WorkerProgram:
        file = self._files[next(iter(options["resources"]))]
        if file not in self._written:
            private_directory(file.parent)
            write_private(file, json.dumps(dataclasses.asdict(self._config(options))))
            self._written.add(file)
        place = {SCRATCH: str(scratch)}
        environment = {**options["env"], **place}
        if container is not None:
            mounts = {**container.mounts, str(file.parent): str(file.parent)}
            inside = {**container.env, **place}
            container = dataclasses.replace(container, mounts=mounts, env=inside)
            environment = {}
        preload = tuple(options["preload"])
        arguments = (str(file), name, *preload)
        return WorkerProgram(
            name, arguments, environment, None, container, preload, *_interpreter(options)
        )

    def _config(self, options: Mapping[str, Any]) -> WorkerConfig:
        interface = options["interface"] or ""
        # Workers on the scheduler's machine and on others have to use the same address.
        scheduler = get_address_host(self._site.scheduler)
        host = "" if interface else str(get_ip(scheduler))  # type: ignore[no-untyped-call]
        return dataclasses.replace(super()._config(options), host=host, interface=interface)

    def _log(self, name: str, scratch: Path) -> Path:  # noqa: ARG002 - the log outlives the scratch
        logs = self._site.log_dir or self._site.directory / "logs"
        return logs / f"{file_name(name)}.log"


# Pools --------------------------------------------------------------------------------------------


def process_pools(
    spec: DeploymentSpec, site: ManagerSite, server: ForkServerProcess | None = None
) -> list[Pool]:
    """Return the empty pools of a manager. Their workers are processes of this machine."""
    slots = spec.options["threads_per_worker"]
    containers = _containers(spec, site.sys_path)
    options = {
        tag: {
            **process_options(component, slots, workflow_directory(spec)),
            "container": containers.get(tag),
            "interface": spec.options["interface"],
        }
        for tag, component in spec.components.items()
    }
    launcher = DetachedLauncher(site, options) if site.detached else ProcessLauncher(site, server)
    launcher.secrets = {
        tag: site.secrets_of(component, workflow_directory(spec))
        for tag, component in spec.components.items()
    }
    return [
        Pool(
            tag,
            launcher,
            {"cls": ProcessWorker, "options": options[tag]},
            slots,
            shape={"cpus": part.cpus, "memory": part.memory, "gpus": part.gpus},
        )
        for tag, part in spec.components.items()
    ]


def _containers(spec: DeploymentSpec, sys_path: Sequence[str]) -> dict[str, ContainerRequest]:
    """Map components to their containers, if any, after a trial start of each container."""
    found = {
        tag: made for tag, made in container_requests(spec, sys_path).items() if made is not None
    }
    for request in found.values():
        prove(request)
    return found


def container_requests(
    spec: DeploymentSpec, sys_path: Sequence[str]
) -> dict[str, ContainerRequest | None]:
    """Map each component to its container or None."""
    slots, found = spec.options["threads_per_worker"], {}
    for tag, component in spec.components.items():
        mounts = {path: path for path in own_paths(component, workflow_directory(spec), sys_path)}
        found[tag] = request_for(
            component,
            spec.options["containers"],
            unit=f"{tag}-{secrets.token_hex(3)}",
            environment=component.environment(slots),
            mounts=mounts,
        )
    return found
