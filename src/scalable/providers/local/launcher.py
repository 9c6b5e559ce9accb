"""The launcher of worker processes on this machine."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from scalable.containers import (
    ContainerRequest,
    container_name,
    render_command,
    render_removal,
)
from scalable.errors import ClusterError, ProviderError
from scalable.manager.launcher import Observation, UnitName
from scalable.manager.pools import ManagerSite
from scalable.protocol.code import interpreter_options
from scalable.protocol.forking import WORKER_MODULE, fits, worker_command
from scalable.providers.local.fork_server import (
    ForkServerError,
    ForkServerProcess,
    StartRequest,
    obstacle,
    start_of,
    supported,
)
from scalable.providers.local.processes import (
    ExecutedChild,
    ForkedChild,
    WorkerProcess,
    file_name,
    make_scratch,
)
from scalable.providers.local.render import is_transient
from scalable.providers.local.units import Belongings, End, LocalUnit
from scalable.worker.config import WorkerConfig, security_fields, serialized_config
from scalable.worker.parent_watch import remove_scratch

logger = logging.getLogger("scalable.providers")

#: Number of stopped workers whose last output is kept.
ENDS_KEPT = 100
#: Maximum number of fork servers that a launcher starts, one after the other. When the last is
#: lost, workers are started without a fork server.
SERVERS = 3


@dataclass(frozen=True)
class WorkerProgram:
    """The program of one worker, to be forked or started in a new interpreter."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    #: Sent through a pipe. The worker exits when this process closes the pipe. None: no pipe.
    config: WorkerConfig | None
    container: ContainerRequest | None
    #: Scripts to run before the worker starts.
    preload: tuple[str, ...]


class ProcessLauncher:
    """Launcher of worker processes that exit with this process.
    Each worker has its own POSIX session, and gets the cluster's credentials through a pipe. It is
    forked from the fork server if it then behaves as in a new interpreter. :meth:`close` stops the
    server, even a given one. The reconciler sets ``on_change``, which is called from any thread.
    """

    #: Number of workers that may start at the same time. A starting worker occupies a core.
    at_once = 4 * (os.cpu_count() or 1)

    def __init__(self, site: ManagerSite, server: ForkServerProcess | None = None) -> None:
        self.on_change: Callable[[], None] | None = None
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
        """Return an empty dictionary: workers exit with the process that launched them."""
        return {}

    def _unit(self, name: str, options: Mapping[str, Any]) -> LocalUnit:
        """Create the directories of a worker and its unit, without starting its process."""
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
        return WorkerProgram(name, (), environment, config, container, config.preload)

    def _config(self, options: Mapping[str, Any]) -> WorkerConfig:
        """Return the configuration that the workers of a pool share."""
        site, container = self._site, options["container"]
        # An image has its own modules. From this machine it gets only the workflow's directory.
        alone = container is not None and container.host_python is None
        return WorkerConfig(
            scheduler=site.scheduler,
            name="",
            nthreads=options["nthreads"],
            resources=options["resources"],
            memory_limit=options["memory_limit"],
            sys_path=site.sys_path[:1] if alone else site.sys_path,
            security=security_fields(site.security),
            manager=site.manager,
            dask_config=serialized_config(),
        )

    def _log(self, name: str, scratch: Path) -> Path:
        logs = self._site.log_dir
        return scratch / "worker.log" if logs is None else logs / f"{file_name(name)}.log"

    # Processes; these methods run in the thread of a unit ----------------------------------------

    def _start(self, program: WorkerProgram, log: Path) -> WorkerProcess:
        if self._closed:
            raise OSError("the launcher of its pool was closed")
        environment = {**os.environ, **program.environment}
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
            logger.debug("worker %s gets a new interpreter: %s", program.name, reason)
            return self._execute(program, environment, output)

    def _fork_server(self) -> ForkServerProcess | None:
        """Return the fork server, started if needed, or None if none is used."""
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
        """Stop using an unfit server. If it died, a new one replaces it, three in all."""
        with self._changing_server:
            if self._server is not server or server.unfit is None or self._closed:
                return
            self._server = None
            self._forks = not server.is_alive() and len(self._servers) < SERVERS
            if self._forks:
                logger.warning("fork server %d was lost: %s", server.pid, reason)
            else:
                logger.warning("further workers are started without a fork server: %s", reason)

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
        options = interpreter_options(Path.cwd())
        child = subprocess.Popen(
            command_line(program.container, (*options, "-m", WORKER_MODULE, *program.arguments)),
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
        """Never blocks."""
        return {name: unit.observe() for name, unit in self._units.items()}

    def look_soon(self) -> None:
        """Do nothing: each observation reads the current state."""

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
    """Wait until the processes of all units run. Raise ProviderError if one cannot start."""
    waiting = [asyncio.wrap_future(unit.started) for unit in units]
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _obstacle(
    program: WorkerProgram, environment: Mapping[str, str], server: ForkServerProcess | None = None
) -> str | None:
    """Return why a worker cannot be forked, or None. Without ``server``: from a new one."""
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
    """Return the pool's container with the name and scratch directory of one worker."""
    if request is None:
        return None
    mounts = {**request.mounts, str(scratch): str(scratch)}
    return dataclasses.replace(request, name=container_name(name), mounts=mounts)


def command_line(container: ContainerRequest | None, program: Sequence[str]) -> list[str]:
    """Return the command that starts Python with arguments, directly or in a container."""
    if container is None:
        return [sys.executable, *program]
    return render_command(container, [container.python, *program])
