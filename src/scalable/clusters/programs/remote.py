"""Scheduler or manager of a remote cluster, run with ``python -m ... PROGRAM``.

PROGRAM is ``scheduler`` or ``manager ID``. The program recreates the cluster's private directory
from the backend's files, and then runs as on a shared file system.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from distributed.comm.addressing import get_address_host_port

from scalable import settings
from scalable.clusters.programs.once import ended
from scalable.clusters.specs import stored_spec
from scalable.errors import ClusterError, ProviderError
from scalable.harmless import log_to_stderr
from scalable.model import ClusterRecord, names
from scalable.protocol.addresses import HOST_VARIABLE
from scalable.protocol.code import in_image
from scalable.protocol.importing import Importer
from scalable.protocol.streams import RELAY_PORT
from scalable.providers.registry import get_provider
from scalable.records import ClusterDirectory
from scalable.records.packing import path_of, record_in, unpack
from scalable.scheduler.controller import Controller
from scalable.scheduler.stream_relay import StreamRelay
from scalable.units import parse_duration

logger = logging.getLogger("scalable.clusters.programs")

#: Seconds for which a manager that has left waits for its scheduler's exit.
END_TIMEOUT_S = 60.0
POLL_S = 1.0
ABANDONED_POLL_S = 0.5


def unpacked(files: Path, state: Path) -> tuple[ClusterDirectory, ClusterRecord]:
    """Create the cluster's private directory. Return it and the creator's record."""
    texts = {
        path_of(path.name): path.read_text(encoding="utf-8")
        for path in files.iterdir()
        if path.is_file() and not path.name.startswith(".")
    }
    record = record_in(texts)
    os.environ["XDG_STATE_HOME"] = str(state)
    inner = dataclasses.replace(
        record,
        remote=False,
        services="process",
        stage="made",
        workflow_dir=None,
        working_dir=str(Path.cwd()),
        runs_dir=str(state / "runs"),
        log_dir=None,
        sys_path=(),
    )
    return unpack(texts, inner), record


def run_scheduler(directory: ClusterDirectory, port: int, *, relay_host: str | None = None) -> None:
    """Run the scheduler until it exits. The backend removes what is left."""
    from scalable.clusters.programs.scheduler import serve

    # The scheduler also unpickles objects of the workflow's modules.
    Importer(in_image("the scheduler"), shares_files=False).install()
    host = os.environ.get(HOST_VARIABLE) or None
    kept = stored_spec(directory).options.get("reconnect_within")
    relaying: dict[str, Any] = {"port": RELAY_PORT}
    relaying |= {"kept_s": parse_duration(kept)} if kept else {}
    relaying |= {"host": relay_host} if relay_host else {}
    beside = partial(_beside, directory.record().abandoned_after_s, relaying)
    reason = asyncio.run(serve(directory, {"host": host, "port": port}, beside))
    logger.info("stopped: %s", reason)
    ended()


async def _beside(
    after_s: float | None,
    relaying: Mapping[str, Any],
    controller: Controller,
    close: Callable[[], None],
) -> None:
    """Run the tunnels' relay, and watch for the creator's death, until cancelled."""
    relay = StreamRelay(get_address_host_port(controller.scheduler.address), **relaying)
    relay.start()
    logger.info("the scheduler listens at %s", controller.scheduler.address)
    try:
        await end_if_abandoned(after_s, controller, close)
        await asyncio.Event().wait()
    finally:
        await asyncio.to_thread(relay.close)


async def end_if_abandoned(
    after_s: float | None, controller: Controller, close: Callable[[], None]
) -> None:
    """Stop the cluster after its creator has been silent for ``after_s`` seconds (None: never)."""
    while after_s is not None:
        await asyncio.sleep(ABANDONED_POLL_S)
        if controller.creator_silent_s() > after_s:
            controller.end(f"its creator has not reported for {after_s:g} s: it has ended")
            if controller.creator_seen is None:
                close()  # its managers died with it: do not wait for them
            return


def run_manager(
    directory: ClusterDirectory, record: ClusterRecord, manager: str, address: str
) -> int:
    """Run a manager until it leaves, and return the exit code.
    If the scheduler failed or is gone, the code is 0, so that the manager is not restarted. If the
    cluster has finished normally, the manager, as the last program, deletes it. On SIGTERM, by
    which the backend moves a manager, it leaves its workers to the next process.
    """
    from scalable.clusters import managing

    logs = directory.logs_dir
    logs.mkdir(mode=0o700, exist_ok=True)
    directory.write_scheduler({"address": address, "log_dir": str(logs)})
    place = get_provider(record.provider).remote(record.place)
    code = 0
    try:
        # Its creator may have died before it could do this.
        place.keep(record.id, record.time_to_live_s)
        config = managing.config_of(directory, manager)
        code = managing.run_manager(dataclasses.replace(config, replaceable=True))
    except (ClusterError, ProviderError) as error:
        logger.error("%s", error)  # noqa: TRY400 - a traceback adds nothing
        code = error.exit_code
    if code == managing.TERMINATED:
        return code
    deadline = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            scheduler = place.programs(record.id).get(names.SCHEDULER)
            if scheduler is None or scheduler.state == "failed":
                return 0
            if scheduler.state == "completed":
                place.delete(record.id, wait=False)
                return 0
        except ProviderError as error:
            logger.warning("could not read the state of the scheduler: %s", error)
            if not error.transient:
                return code  # its rights were removed with the cluster
        if code:
            return code
        time.sleep(POLL_S)
    return code


def main() -> None:
    """Run the program named on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=("scheduler", "manager"))
    parser.add_argument("id", nargs="?", default="")
    parser.add_argument("--files", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--address", required=True, help="address of the scheduler")
    given = parser.parse_args()
    log_to_stderr()
    directory, record = unpacked(given.files, given.state)
    logger.debug("state in %s; record of %s", settings.state_dir(), json.dumps(record.name))
    if given.program == "scheduler":
        run_scheduler(directory, int(given.address.rpartition(":")[2]))
        return
    sys.exit(run_manager(directory, record, given.id, given.address))


if __name__ == "__main__":
    main()
