"""The inner side of each test bed: the life of its process, and commands from tests."""

import asyncio
import contextlib
import inspect
import json
import logging
import os
import shutil
import signal
import sys
from pathlib import Path

from aiohttp import web

logger = logging.getLogger("bed_program")


class Commands:
    """Listens on the Unix socket `control` and runs methods of an object that begin with `do_`."""

    def __init__(self, place, directory):
        self.place = place
        self.directory = Path(directory)
        self.runner = None

    async def start(self):
        """Listen."""
        app = web.Application()
        app.router.add_post("/{command}", self.answer)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.UnixSite(self.runner, str(self.directory / "control")).start()

    async def answer(self, request):
        """Run one command."""
        method = getattr(self.place, f"do_{request.match_info['command']}", None)
        if method is None:
            return web.json_response({"error": "no such command"}, status=404)
        try:
            result = method(**json.loads(await request.text() or "{}"))
            if inspect.isawaitable(result):
                result = await result
        except Exception as error:
            logger.exception("command failed")
            return web.json_response({"error": repr(error)}, status=400)
        return web.json_response({"result": result})

    async def close(self):
        """Stop listening."""
        await self.runner.cleanup()


async def _run(make, directory, lifeline):
    """Run a place until a signal, or until the other end of `lifeline` is closed."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def look():
        if not os.read(lifeline, 1):
            loop.remove_reader(lifeline)  # the end of a file would be told again and again
            stop.set()

    loop.add_reader(lifeline, look)
    place = make(directory)
    commands = Commands(place, directory)
    await place.start()
    await commands.start()
    with contextlib.suppress(BrokenPipeError):  # the parent ended meanwhile, which `look` sees
        print("ready", flush=True)
    await stop.wait()
    loop.remove_reader(lifeline)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(15):
            await place.close()
            await commands.close()
    shutil.rmtree(directory, ignore_errors=True)


def serve(make, directory):
    """Run as the child of a `BedProcess`: standard input is the lifeline.

    `make(directory)` returns an object with the coroutines `start` and `close` and with commands,
    its methods `do_...`.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    asyncio.run(_run(make, directory, sys.stdin.fileno()))
