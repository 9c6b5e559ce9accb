"""Many light workers in one process, which speak the protocol of Dask's worker and run nothing.

A simulated worker registers, sends heartbeats, takes calls, and reports that they have ended, with
made-up times, results and failures. It loads no function, and starts no thread. A call with other
calls as input takes them as given. The calls of bundles (``simulated_bundles.py``) have results.

Workers leave (:meth:`SimulatedWorker.leave`), die (:meth:`SimulatedWorker.die`) and hang
(:meth:`SimulatedWorker.hang`) when they are told to. Each listens on an address of its own on the
loopback interface, and answers requests for results.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import heapq
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed import Security
from distributed.batched import BatchedSend
from distributed.comm import connect, listen
from distributed.comm.core import Comm, CommClosedError
from distributed.protocol import to_serialize
from distributed.protocol.pickle import loads

from scalable.protocol.bundles import EVERY
from scalable.protocol.operations import INTERRUPT
from simulated_bundles import SimulatedBundle, given_back, is_bundle
from simulated_messages import MB, erred, finished, metrics, registration

_CONNECT_TIMEOUT_S = 60.0


@dataclass
class Behaviour:
    """What a simulated worker does, with made-up values from one source of chance."""

    call_s: Callable[[Any], float] = lambda _: 0.0
    fails: Callable[[Any], bool] = lambda _: False
    nbytes: int = 28
    start_s: Callable[[], float] = lambda: 0.0
    threads: int = 1
    memory: int = 2_000 * MB


@dataclass
class Traffic:
    """Numbers of what the simulated workers of a process have sent, together."""

    registered: int = 0
    heartbeats: int = 0
    finished: int = 0
    failed: int = 0
    bundles: int = 0
    longest_heartbeat_s: float = 0.0


@dataclass(order=True)
class _Waiting:
    priority: tuple[Any, ...]
    number: int
    message: Mapping[str, Any] = field(compare=False)


@functools.cache
def _credentials(security: Security) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of connections and of listeners, which workers of a process share."""
    return security.get_connection_args("worker"), security.get_listen_args("worker")


class SimulatedWorker:
    """One simulated worker."""

    def __init__(
        self,
        scheduler: str,
        name: str,
        tag: str,
        *,
        behaviour: Behaviour,
        security: Security | None = None,
        manager: str = "",
        host: str = "127.0.0.1",
        traffic: Traffic | None = None,
    ) -> None:
        self.name, self.tag, self.address = name, tag, ""
        self.ended = asyncio.Event()
        self.registered = False
        self.traffic = traffic or Traffic()
        self._scheduler, self._host, self._manager = scheduler, host, manager
        self._behaviour = behaviour
        self._protocol = "tcp" if security is None else "tls"
        self._connecting, self._listening = _credentials(security) if security else ({}, {})
        self._stream: BatchedSend | None = None
        self._comms: set[Comm] = set()
        self._listener: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: list[_Waiting] = []
        self._numbers = itertools.count()
        # Key -> (run id, monotonic begin, timer) of the calls that run; keys of the results.
        self._running: dict[Any, tuple[int, float, asyncio.TimerHandle]] = {}
        self._results: set[Any] = set()
        self._hangs, self._status = False, "running"

    # Life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and register with the scheduler; return when that is done."""
        self._listener = await listen(
            f"{self._protocol}://{self._host}:0", self._serve, **self._listening
        )
        self.address = self._listener.contact_address
        comm = await self._connect()
        behaviour = self._behaviour
        told = registration(
            self.name, self.address, self.tag, self._manager, behaviour.threads, behaviour.memory
        )
        await comm.write(told, serializers=["msgpack"])
        answer = await comm.read(deserializers=["msgpack"])
        if answer.get("status") != "OK":
            await self._close()
            raise RuntimeError(f"worker {self.name} was refused: {answer}")
        self.registered = True
        self.traffic.registered += 1
        self._stream = BatchedSend(interval="2ms")
        self._stream.start(comm)
        self._begin(self._follow(comm))
        self._begin(self._beat(answer["heartbeat-interval"]))

    async def leave(self) -> None:
        """End as a worker that was told to: announce it, and close the connections."""
        if self._stream is not None and not self._stream.closed():
            self._send({"op": "close-stream"})
            with contextlib.suppress(OSError, CommClosedError):
                await self._stream.close()
        await self._close()

    async def die(self) -> None:
        """End without a word, as a worker whose process was killed."""
        for comm in list(self._comms):
            comm.abort()
        await self._close()

    def hang(self) -> None:
        """Stop heartbeats, calls and answers, but keep the connections open."""
        self._hangs = True
        for _, _, timer in self._running.values():
            timer.cancel()

    async def _close(self) -> None:
        if self.ended.is_set():
            return
        self.ended.set()
        for _, _, timer in self._running.values():
            timer.cancel()
        if self._stream is not None:
            self._stream.abort()
        for comm in list(self._comms):
            comm.abort()
        if self._listener is not None:
            self._listener.stop()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> Comm:
        # What is pickled, such as the function of a call, stays as the bytes that came.
        comm = await connect(
            self._scheduler, timeout=_CONNECT_TIMEOUT_S, deserialize=False, **self._connecting
        )
        self._comms.add(comm)
        return comm

    # Messages to the scheduler --------------------------------------------------------------------

    def _metrics(self) -> dict[str, Any]:
        held = len(self._results)
        waiting, nbytes = len(self._waiting), held * self._behaviour.nbytes
        return metrics(len(self._running), waiting, held, nbytes)

    async def _beat(self, interval_s: float) -> None:
        await asyncio.sleep(random.random() * interval_s)
        comm: Comm | None = None
        try:
            while not self._hangs:
                if comm is None:
                    comm = await self._connect()
                began = time.monotonic()
                running = {key: began - at for key, (_, at, _) in self._running.items()}
                await comm.write(
                    {
                        "op": "heartbeat_worker",
                        "address": self.address,
                        "now": time.time(),
                        "metrics": self._metrics(),
                        "executing": running,
                        "extensions": {},
                    }
                )
                answer = await comm.read()
                took = time.monotonic() - began
                self.traffic.heartbeats += 1
                self.traffic.longest_heartbeat_s = max(self.traffic.longest_heartbeat_s, took)
                if answer["status"] == "missing":
                    await self._close()
                    return
                await asyncio.sleep(answer["heartbeat-interval"])
        except OSError:
            await self._close()

    def _send(self, *messages: Mapping[str, Any]) -> None:
        with contextlib.suppress(CommClosedError):
            if self._stream is not None:
                self._stream.send(*messages)

    # Messages from the scheduler ------------------------------------------------------------------

    async def _follow(self, comm: Comm) -> None:
        """Handle the messages of the scheduler until the connection ends."""
        with contextlib.suppress(OSError, CommClosedError):
            while not self.ended.is_set():
                messages = await comm.read()
                for message in messages if not self._hangs else ():
                    if not self._handle(message):
                        await self._close()
                        return
        await self._close()

    def _handle(self, message: Mapping[str, Any]) -> bool:
        """Handle one message; return False if the worker has to end."""
        operation = message.get("op")
        if operation == "compute-task":
            waiting = _Waiting(tuple(message["priority"]), next(self._numbers), message)
            heapq.heappush(self._waiting, waiting)
            self._run_more()
        elif operation in ("free-keys", "remove-replicas"):
            self._forget(message["keys"])
        elif operation == "cancel-compute":
            self._forget([message["key"]])
        elif operation == "steal-request":
            state = self._give_back(message["key"])
            stimulus = message["stimulus_id"]
            self._send(
                {
                    "op": "steal-response", "key": message["key"], "state": state,
                    "stimulus_id": stimulus,
                }
            )  # fmt: skip
        elif operation == INTERRUPT:
            if message["number"] == EVERY and self._give_back(message["key"]) == "ready":
                self._send(given_back(message["key"], message["client"]))
        elif operation == "acquire-replicas":
            self._results.update(message["who_has"])
            keys = list(message["who_has"])
            stimulus = message["stimulus_id"]
            self._send({"op": "add-keys", "keys": keys, "stimulus_id": stimulus})
        elif operation == "worker-status-change":
            self._status = str(message["status"])
        elif operation == "close":
            return False
        return True

    def _run_more(self) -> None:
        while self._waiting and len(self._running) < self._behaviour.threads:
            message = heapq.heappop(self._waiting).message
            key = message["key"]
            seconds, bundle = self._behaviour.call_s(key), None
            if is_bundle(message):
                bundle = SimulatedBundle(message, self.name, seconds)
                seconds = bundle.seconds
                self._send(bundle.begins())
            loop = asyncio.get_running_loop()
            timer = loop.call_later(seconds, self._end, message, seconds, bundle)
            self._running[key] = (message["run_id"], time.monotonic(), timer)

    def _end(
        self, message: Mapping[str, Any], seconds: float, bundle: SimulatedBundle | None
    ) -> None:
        key = message["key"]
        if self._running.pop(key, None) is None:
            return
        if bundle is not None:
            self._results.add(key)
            self.traffic.bundles += 1
            self._send(*bundle.ends())
            entries = [bundle.entry()]
            self._send(finished(message, seconds, self._behaviour.nbytes, entries))
        elif self._behaviour.fails(key):
            self._fail(message, seconds, "made up")
        else:
            self._results.add(key)
            self.traffic.finished += 1
            self._send(finished(message, seconds, self._behaviour.nbytes))
        self._run_more()

    def _fail(self, message: Mapping[str, Any], seconds: float, words: str) -> None:
        self.traffic.failed += 1
        self._send(erred(message, seconds, self.name, words))

    def _give_back(self, key: Any) -> str | None:
        """Forget a call that waits here; return the state that it had, or None."""
        for waiting in self._waiting:
            if waiting.message["key"] == key:
                self._waiting.remove(waiting)
                heapq.heapify(self._waiting)
                return "ready"
        if key in self._running:
            return "executing"
        return "memory" if key in self._results else None

    def _states(self, keys: Iterable[Any]) -> tuple[str, dict[Any, str]]:
        """Return the worker's status, and the states of those of its calls that it knows."""
        known = dict.fromkeys(self._results, "memory") | dict.fromkeys(self._running, "executing")
        known |= {waiting.message["key"]: "ready" for waiting in self._waiting}
        return self._status, {key: known[key] for key in keys if key in known}

    def _forget(self, keys: Iterable[Any]) -> None:
        gone = set(keys)
        self._results -= gone
        for key in gone & self._running.keys():
            self._running.pop(key)[2].cancel()
        if any(waiting.message["key"] in gone for waiting in self._waiting):
            kept = [waiting for waiting in self._waiting if waiting.message["key"] not in gone]
            heapq.heapify(kept)
            self._waiting = kept
        self._run_more()

    # Requests from others -------------------------------------------------------------------------

    async def _serve(self, comm: Comm) -> None:
        """Answer the requests of one connection: results, and whether results may be dropped."""
        self._comms.add(comm)
        try:
            while not self.ended.is_set():
                message = await comm.read()
                if self._hangs:
                    await self.ended.wait()
                answer = self._answer(message)
                if message.get("reply", True):
                    await comm.write(answer)
                if message.get("close") or message["op"] == "close":
                    break
                if message["op"] == "get_data":
                    await comm.read()  # "OK"
        except (OSError, CommClosedError):
            pass
        finally:
            self._comms.discard(comm)
            comm.abort()

    def _answer(self, message: Mapping[str, Any]) -> Any:
        operation = message["op"]
        if operation == "get_data":
            data = {key: to_serialize(0) for key in message["keys"] if key in self._results}
            return {"status": "OK", "data": data}
        if operation == "free_keys":
            self._forget(message["keys"])
            return "OK"
        if operation == "gather":
            self._results.update(message["who_has"])
            return {"status": "OK"}
        if operation == "run":  # a drain's question about the worker and some of its calls
            return {"status": "OK", "result": to_serialize(self._states(*loads(message["args"])))}
        return "OK"
