"""Many light workers in one process, which speak the protocol of Dask's worker and run nothing.

A simulated worker registers, sends heartbeats, takes calls, and reports that they have ended, with
made-up times, results and failures. It loads no function, and starts no thread. A call with other
calls as input takes them as given. The calls of bundles (batches of calls of an
executor) have made-up times and results too.

Workers leave (:meth:`SimulatedWorker.leave`), die (:meth:`SimulatedWorker.die`) and hang
(:meth:`SimulatedWorker.hang`) when they are told to. Each listens on an address of its own on the
loopback interface, and answers requests for results.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import heapq
import itertools
import math
import os
import pickle
import random
import resource
import time
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from distributed import Security
from distributed.batched import BatchedSend
from distributed.comm import connect, listen
from distributed.comm.core import Comm, CommClosedError
from distributed.protocol import Serialize, to_serialize
from distributed.protocol.pickle import loads
from distributed.versions import get_versions

from scalable.protocol.measured import BUNDLE_ANNOTATION, FAILURE, USAGE, addition
from scalable.protocol.operations import (
    BEGUN,
    EVERY,
    INTERRUPT,
    LEFT,
    MANAGER_KEY,
    OUTCOMES,
    RETURNED,
)
from scalable.worker.bundles import OVERDUE_S
from scalable.worker.outcomes import BundleCounts, EndedCalls

MB = 1_000_000
_RESULT_TYPE = pickle.dumps(int)
#: As long as that of a call deep in a library.
_TRACEBACK = '  File "/somewhere/model.py", line 1, in call\n    raise ValueError\n' * 80
_known_versions: dict[str, Any] = {}


def registration(
    name: str, address: str, tag: str, manager: str, threads: int, memory: int
) -> dict[str, Any]:
    return {
        "op": "register-worker",
        "reply": False,
        "address": address,
        "status": "running",
        "nthreads": threads,
        "name": name,
        "now": time.time(),
        "resources": {tag: float(threads)} if tag else {},
        "memory_limit": memory,
        "local_directory": "/simulated",
        "services": {},
        "nanny": None,
        "pid": os.getpid(),
        "versions": _versions(),
        "metrics": metrics(0, 0, 0, 0),
        "extra": {MANAGER_KEY: manager, LEFT: True} if manager else {},
        "stimulus_id": f"worker-connect-{time.time()}",
        "server_id": f"Worker-{name}",
    }


def metrics(running: int, waiting: int, held: int, held_bytes: int) -> dict[str, Any]:
    """Return the metrics of a heartbeat, from the numbers of calls and results of a worker."""
    return {
        "task_counts": {"executing": running, "memory": held, "ready": waiting},
        "bandwidth": {"total": 100 * MB, "workers": {}, "types": {}},
        "digests_total_since_heartbeat": {"latency": 0.001, "tick-duration": 0.5},
        "managed_bytes": held_bytes,
        "spilled_bytes": {"memory": 0, "disk": 0},
        "transfer": {
            "incoming_bytes": 0, "incoming_count": 0, "incoming_count_total": 0,
            "outgoing_bytes": 0, "outgoing_count": 0, "outgoing_count_total": 0,
        },
        "event_loop_interval": 0.02,
        "cpu": 100.0 * bool(running),
        "memory": 100 * MB,
        "time": time.time(),
        "host_net_io": {"read_bps": 0.0, "write_bps": 0.0},
        "host_disk_io": {"read_bps": 0.0, "write_bps": 0.0},
        "num_fds": 30,
    }  # fmt: skip


def finished(
    call: Mapping[str, Any], seconds: float, nbytes: int, entries: Iterable[Any] = ()
) -> dict[str, Any]:
    """Return the message that a call has a result, which took some seconds."""
    now = time.time()
    return {
        "op": "task-finished",
        "status": "OK",
        "key": call["key"],
        "run_id": call["run_id"],
        "nbytes": nbytes,
        "type": _RESULT_TYPE,
        "typename": "int",
        "metadata": {},
        "thread": 1,
        "startstops": [*_times(now - seconds, seconds), *entries],
        "stimulus_id": f"task-finished-{now}",
    }


def erred(call: Mapping[str, Any], seconds: float, worker: str, words: str) -> dict[str, Any]:
    """Return the message that a call has failed on a worker, after some seconds."""
    now = time.time()
    told = addition(FAILURE, {"worker": worker})
    return {
        "op": "task-erred",
        "status": "error",
        "key": call["key"],
        "run_id": call["run_id"],
        "exception": Serialize(ValueError(words)),
        "traceback": None,
        "exception_text": f"ValueError({words!r})",
        "traceback_text": _TRACEBACK,
        "thread": 1,
        "startstops": [*_times(now - seconds, seconds), told],
        "stimulus_id": f"task-erred-{now}",
    }


def _times(began: float, seconds: float) -> list[dict[str, Any]]:
    ended = began + seconds
    return [
        {"action": "compute", "start": began, "stop": ended},
        addition(USAGE, {"cpu_s": seconds, "peak_memory": 100 * MB}),
    ]


def _versions() -> dict[str, Any]:
    """Return the versions of this process, which take long to find."""
    if not _known_versions:
        _known_versions.update(get_versions())
    return _known_versions


#: Peak memory of each worker in bytes.
MEMORY = 100_000_000


def is_bundle(message: Mapping[str, Any]) -> bool:
    return BUNDLE_ANNOTATION in (message.get("annotations") or {})


def given_back(key: str, client: str) -> dict[str, Any]:
    """Return the message that a bundle was given back before it began."""
    return {"op": RETURNED, "client": client, "key": key, "numbers": EVERY}


class SimulatedBundle:
    """One running bundle, whose calls all take the same time."""

    def __init__(self, message: Mapping[str, Any], worker: str, call_s: float) -> None:
        header = message["run_spec"]._loaded().args[0]
        self._about = {"client": header["client"], "key": header["key"]}
        self._rows = header["profile"] or header["record"]
        self._worker, self._call_s = worker, call_s
        self._calls = int(message["annotations"][BUNDLE_ANNOTATION]["calls"])
        begun = math.ceil(OVERDUE_S / call_s) if call_s > 0 else self._calls
        self._begun = max(1, min(self._calls, begun))
        self._counts = BundleCounts()

    @property
    def seconds(self) -> float:
        """Seconds until all calls that it begins have ended."""
        return self._begun * self._call_s

    def begins(self) -> dict[str, Any]:
        return {"op": BEGUN, **self._about}

    def ends(self) -> Iterator[dict[str, Any]]:
        """Return the messages of the end: the calls that did not begin, and the outcomes."""
        if self._begun < self._calls:
            numbers = list(range(self._begun, self._calls))
            yield {"op": RETURNED, **self._about, "numbers": numbers}
        now, call_s = time.time(), self._call_s
        ended = EndedCalls()
        ended.numbers = ended.values = list(range(self._begun))
        ended.durations = [call_s] * self._begun
        self._counts.ran(ended.numbers, ended.durations)
        measured = None
        if self._rows:
            began = now - self.seconds
            columns = (array("d", [each]) * self._begun for each in (began, call_s, call_s))
            measured = (self._worker, 0.0, *columns, MEMORY)
            self._counts.rows = [("succeeded", (began, call_s, call_s, MEMORY))] * self._begun
        told = ended.message(measured)
        busy_s = max(self.seconds, 1e-6 * self._begun)
        yield {"op": OUTCOMES, **self._about, "outcomes": told, "busy_s": busy_s}

    def entry(self) -> Any:
        """Return the entry of the bundle's calls in the timings of its Dask task."""
        return self._counts.entry(0)


def open_many_files() -> None:
    """Let this process have as many connections as it may."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def collect_seldom() -> None:
    """Collect garbage seldom: that leaves the machine to what is measured."""
    gc.set_threshold(100_000, 50, 100)


class SimulatedWorkers:
    """The simulated workers of one process."""

    def __init__(
        self,
        scheduler: str,
        security: Security,
        behaviour: Behaviour | None = None,
        *,
        manager: str = "",
    ) -> None:
        self.workers: dict[str, SimulatedWorker] = {}
        self.behaviour = behaviour or Behaviour()
        self._scheduler, self._security, self._manager = scheduler, security, manager
        self._hosts = itertools.count()
        # Handshakes share this process, and would all take too long if they began together.
        self._gate = asyncio.Semaphore(50)

    async def add(self, names: Iterable[str], tag: str = "") -> None:
        await asyncio.gather(*(self.start(name, tag) for name in names))

    async def start(self, name: str, tag: str = "") -> SimulatedWorker:
        """Start one worker; return it once it has registered."""
        number = next(self._hosts)
        host = f"127.{1 + number // 62_500 % 250}.{number // 250 % 250}.{1 + number % 250}"
        common = {"behaviour": self.behaviour, "security": self._security, "host": host}
        async with self._gate:
            worker = SimulatedWorker(self._scheduler, name, tag, manager=self._manager, **common)
            await worker.start()
        self.workers[name] = worker
        return worker

    async def close(self) -> None:
        await self.end(len(self.workers))

    async def end(self, count: int, *, dies: bool = False) -> None:
        """End the first workers: they leave as if told to, or die without a word."""
        ending = [self.workers.pop(name) for name in list(self.workers)[:count]]
        await asyncio.gather(*(w.die() if dies else w.leave() for w in ending))


_CONNECT_TIMEOUT_S = 60.0


@dataclass
class Behaviour:
    """What a simulated worker does, with made-up values from one source of chance."""

    call_s: Callable[[Any], float] = lambda _: 0.0
    fails: Callable[[Any], bool] = lambda _: False
    nbytes: int = 28
    threads: int = 1
    memory: int = 2_000 * MB


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
        security: Security,
        manager: str,
        host: str,
    ) -> None:
        self.name, self.tag, self.address = name, tag, ""
        self.ended = asyncio.Event()
        self._scheduler, self._host, self._manager = scheduler, host, manager
        self._behaviour = behaviour
        self._connecting, self._listening = _credentials(security)
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
        self._listener = await listen(f"tls://{self._host}:0", self._serve, **self._listening)
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
                told = {"op": "heartbeat_worker", "address": self.address, "now": time.time()}
                told |= {"metrics": self._metrics(), "executing": running, "extensions": {}}
                await comm.write(told)
                answer = await comm.read()
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
            about = {"key": message["key"], "stimulus_id": message["stimulus_id"]}
            self._send({"op": "steal-response", "state": state, **about})
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
            self._send(*bundle.ends())
            entries = [bundle.entry()]
            self._send(finished(message, seconds, self._behaviour.nbytes, entries))
        elif self._behaviour.fails(key):
            self._fail(message, seconds, "made up")
        else:
            self._results.add(key)
            self._send(finished(message, seconds, self._behaviour.nbytes))
        self._run_more()

    def _fail(self, message: Mapping[str, Any], seconds: float, words: str) -> None:
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

    def _seen(self) -> Any:
        """Return what a function of the scheduler's questions reads of a worker."""
        states = dict.fromkeys(self._results, "memory") | dict.fromkeys(self._running, "executing")
        states |= {waiting.message["key"]: "ready" for waiting in self._waiting}
        tasks = {key: SimpleNamespace(state=state) for key, state in states.items()}
        status = SimpleNamespace(name=self._status)
        running = [SimpleNamespace(key=key) for key in self._running]
        state = SimpleNamespace(tasks=tasks, all_running_tasks=running)
        return SimpleNamespace(status=status, state=state)

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
        if operation == "run":  # a question about the worker and some of its calls
            asked = loads(message["function"])
            answer = asked(*loads(message["args"]), dask_worker=self._seen())
            return {"status": "OK", "result": to_serialize(answer)}
        return "OK"
