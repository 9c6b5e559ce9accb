"""The scheduler of a remote cluster: ``python -m scalable.programs.remote_scheduler FILE``.

The file, which only its owner can read, holds the credentials and limits of the cluster. The
manager runs elsewhere, for example in the process of the cluster's creator. The scheduler ends when
it is told to, when a limit of its lifetime is over, and when it has heard nothing from any manager
for some time: its creator has died then.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributed.comm.addressing import get_address_host_port

from scalable.protocol.code import in_image
from scalable.protocol.credentials import security_of
from scalable.protocol.importing import Importer
from scalable.scheduler.adaptation import Adaptation
from scalable.scheduler.controller import Controller
from scalable.scheduler.demand import Demand
from scalable.scheduler.lifetime import Limits
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.scheduler.stream_relay import StreamRelay
from scalable.worker.config import HOST_VARIABLE

logger = logging.getLogger("scalable.programs")

CHECK_INTERVAL_S = 0.5


async def serve(config: Mapping[str, Any]) -> str:
    """Run the scheduler until it ends; return the reason of the end.

    Parameters
    ----------
    config
        ``port``; ``relay_port``, where tunnels end; ``reconnect_within_s``, seconds for which a
        lost tunnel is waited for; ``security``, keyword of ``distributed.Security`` -> PEM text;
        ``limits``, fields of :class:`Limits`; ``abandoned_after_s``; ``adaptive``, tag -> minimum
        and maximum; ``adaptive_maximum``; ``expectations``.
    """
    scheduler = PoolScheduler(
        host=os.environ.get(HOST_VARIABLE) or None,
        port=config["port"],
        protocol="tls://",
        security=security_of(config["security"]),
        dashboard=False,
    )
    await scheduler
    closing: list[asyncio.Task[Any]] = []

    def close() -> None:
        if not closing:
            closing.append(asyncio.ensure_future(scheduler.close()))

    demand = Demand()
    controller = Controller(
        scheduler,
        demand,
        limits=Limits(**config["limits"]),
        close_with=close,
        expected=1,
        follow_with=Adaptation,
    )
    scheduler.add_plugin(controller)
    # Pools that adapt are known before their manager attaches.
    for tag, (least, _) in config["adaptive"].items():
        demand.want(tag, least, before=0, reason="scale", source="plan")
    if config["adaptive"]:
        controller.adaptation.follow(
            {tag: (least, most) for tag, (least, most) in config["adaptive"].items()},
            maximum=config["adaptive_maximum"],
            expectations=config["expectations"],
        )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, controller.end, f"its scheduler got {number.name}")
    watching = asyncio.create_task(end_if_abandoned(controller, config["abandoned_after_s"], close))
    relay = StreamRelay(
        get_address_host_port(scheduler.address),
        port=config["relay_port"],
        kept_s=config["reconnect_within_s"],
    )
    relay.start()
    logger.info("listening at %s", scheduler.address)
    await scheduler.finished()
    watching.cancel()
    await asyncio.to_thread(relay.close)
    return controller.ending or "its scheduler was closed"


async def end_if_abandoned(controller: Controller, after_s: float, close: Any) -> None:
    """End the cluster when no manager has reported for ``after_s`` seconds."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        seen = max((manager.last_seen for manager in controller.managers), default=began)
        if time.monotonic() - seen > after_s:
            controller.end(f"no manager has reported for {after_s:g} s: its creator has ended")
            close()
            return


def main() -> None:
    """Run the scheduler that the file describes."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("distributed").setLevel(logging.WARNING)
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    # The scheduler unpickles objects of the workflow's modules too.
    Importer(in_image("the scheduler")).install()
    reason = asyncio.run(serve(config))
    logger.info("ended: %s", reason)


if __name__ == "__main__":
    main()
