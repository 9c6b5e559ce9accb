"""What the order of calls costs: CPU of a scheduler for each call, with the order beside without.

    python benchmarks/order_cost.py [--rounds 25] [--calls 2000] [--workers 100]

The scheduler has all that it has in a cluster, but no network: a graph is handed to it, workers
that do not exist answer at once, and what is sent to them is dropped. So the share of the order is
larger than in a cluster, where messages are packed and unpacked, too. Rounds are short and in
turns, since other programs on the machine slow both of a pair; the ratio is the median of the
pairs'. The bar is 1.05.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import dask
from dask.task_spec import Task, TaskRef
from distributed.core import Status
from distributed.scheduler import ClientState, WorkerState

from scalable.protocol.measured import TASK_ANNOTATION, USAGE, addition
from scalable.protocol.operations import PRIORITIES
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.spec.ordering import CRITICAL_PATH, SUBMITTED

BAR = 1.05
#: Names of the tasks of a graph, in turns.
NAMES = ("prepare", "run", "summarize", "plot")
#: Calls that are given back as ended before other turns of the event loop come.
PER_TURN = 50

#: Key of a call -> (its name, keys of the calls that it waits for).
Graph = dict[str, tuple[str, Sequence[str]]]


def nothing(*_: Any) -> None:
    """Do nothing."""


def levels(count: int, mark: str) -> list[Graph]:
    """One graph of ten levels, each call waits for two of the level before."""
    width = max(1, count // 10)
    return [
        {
            f"{NAMES[i % 4]}-{mark}-{i}-{j}": (
                NAMES[i % 4],
                [f"{NAMES[(i - 1) % 4]}-{mark}-{i - 1}-{k % width}" for k in (j, 7 * j + 1)]
                if i else [],
            )
            for i in range(10)
            for j in range(width)
        }
    ]  # fmt: skip


def chains(count: int, mark: str) -> list[Graph]:
    """One graph of chains of a hundred calls."""
    return [
        {
            f"{NAMES[i % 4]}-{mark}-{i}-{j}": (
                NAMES[i % 4], [f"{NAMES[(i - 1) % 4]}-{mark}-{i - 1}-{j}"] if i else [],
            )
            for j in range(max(1, count // 100))
            for i in range(100)
        }
    ]  # fmt: skip


def single(count: int, mark: str) -> list[Graph]:
    """Calls without others, submitted one by one."""
    return [{f"run-{mark}-{i}": ("run", [])} for i in range(count)]


def submitted(count: int, mark: str) -> list[Graph]:
    """Calls submitted one by one with futures: chains of four."""
    return [
        {key: call}
        for j in range(count // 4)
        for key, call in chains(100, f"{mark}-{j}")[0].items()
        if int(key.split("-")[-2]) < 4
    ]


SHAPES = {"levels": levels, "chains": chains, "single": single, "with futures": submitted}


class Comm:
    """A connection that counts messages, and gives those about calls to a list."""

    def __init__(self, orders: list[tuple[str, Any]] | None = None, address: str = "") -> None:
        self.orders, self.address = orders, address
        self.moved = 0

    def send(self, *messages: Any) -> None:
        """Take messages."""
        for message in messages:
            if self.orders is not None and message["op"] == "compute-task":
                self.orders.append((self.address, message))
            elif message["op"] == PRIORITIES:
                self.moved += len(message["priorities"])

    def closed(self) -> bool:
        """Return that the connection has ended, at the end of the scheduler."""
        return True

    def abort(self) -> None:
        """Do nothing."""


class Bed:
    """A scheduler with workers that do not exist."""

    def __init__(self, scheduler: PoolScheduler, workers: int) -> None:
        self.scheduler = scheduler
        self.orders: list[tuple[str, Any]] = []
        scheduler.clients["bench"] = ClientState("bench")
        scheduler.client_comms["bench"] = Comm()
        for i in range(workers):
            address = f"tcp://10.0.{i // 250}.{i % 250}:4000"
            worker = WorkerState(
                address=address, status=Status.running, pid=i, name=f"w{i}", nthreads=1,
                memory_limit=2**34, local_directory="", nanny="", server_id=f"s{i}",
                scheduler=scheduler, extra={PRIORITIES: True},
            )  # fmt: skip
            scheduler.workers[address] = worker
            scheduler.running.add(worker)
            scheduler.total_nthreads += 1
            worker.resources.update({"a": 1.0})
            scheduler.add_resources(address)
            scheduler.stream_comms[address] = Comm(self.orders, address)
            scheduler.check_idle_saturated(worker)

    def hand_over(self, graph: Graph) -> None:
        """Give a graph to the scheduler as if a client had sent it."""
        nodes = {
            key: Task(key, nothing, *(TaskRef(other) for other in others))
            for key, (_, others) in graph.items()
        }
        self.scheduler._create_taskstate_from_graph(
            start=time.time(), dsk=nodes, keys=set(graph),
            ordered={key: i for i, key in enumerate(nodes)}, client="bench",
            annotations_by_type={TASK_ANNOTATION: {key: name for key, (name, _) in graph.items()}},
            global_annotations={"resources": {"a": 1}}, stimulus_id="bench", submitting_task=None,
            span_metadata={"collections": []}, fifo_timeout=0.1,
        )  # fmt: skip

    async def run(self, graphs: Sequence[Graph]) -> tuple[float, float]:
        """Run graphs; return the CPU seconds, and the longest turn for a graph in seconds."""
        gc.collect()
        began = time.process_time()
        longest = 0.0
        for i, graph in enumerate(graphs):
            turn = time.thread_time()
            self.hand_over(graph)
            longest = max(longest, time.thread_time() - turn)
            if i % PER_TURN == 0:
                await asyncio.sleep(0)
        # Calls wait for a while, so that changes of the order come to pass.
        cpu = time.process_time() - began
        await asyncio.sleep(0.3)
        began = time.process_time() - cpu
        while self.orders:
            some, self.orders[:] = self.orders[:PER_TURN], self.orders[PER_TURN:]
            for number, (address, message) in enumerate(some):
                self._end(address, message, number)
            await asyncio.sleep(0)
        return time.process_time() - began, longest

    def _end(self, address: str, message: Any, number: int) -> None:
        now = time.time()
        usage = addition(USAGE, {"cpu_s": 0.0, "peak_memory": None})
        ran = {"action": "compute", "start": now - 1 - number / 100, "stop": now}
        self.scheduler.handle_task_finished(
            key=message["key"], worker=address, stimulus_id="bench", run_id=message["run_id"],
            metadata={}, nbytes=100, type=b"", typename="int", thread=1, startstops=[ran, usage],
        )  # fmt: skip

    async def forget(self) -> None:
        """Forget all calls."""
        keys = list(self.scheduler.tasks)
        self.scheduler.client_releases_keys(keys=keys, client="bench", stimulus_id="bench")
        await asyncio.sleep(0)
        assert not self.scheduler.tasks

    @property
    def moved(self) -> int:
        """Number of calls of which workers were told a new place."""
        return sum(comm.moved for comm in self.scheduler.stream_comms.values())


async def measure(rounds: int, calls: int, workers: int) -> Iterator[str]:
    """Measure all shapes, and return the lines of the table."""
    async with PoolScheduler(
        protocol="inproc", dashboard=False, dashboard_address=None
    ) as scheduler:
        bed, lines = Bed(scheduler, workers), []
        order = scheduler.order
        assert order is not None
        for name, shape in SHAPES.items():
            seconds: dict[str, list[float]] = {CRITICAL_PATH: [], SUBMITTED: []}
            turns: dict[str, list[float]] = {CRITICAL_PATH: [], SUBMITTED: []}
            moved = bed.moved
            for number in range(rounds + 1):
                for rule in sorted(seconds, reverse=bool(number % 2)):
                    order.rule = rule
                    graphs = shape(calls, f"{rule[:3]}{number}")
                    cpu, longest = await bed.run(graphs)
                    await bed.forget()
                    if number:  # the first round warms up
                        seconds[rule].append(cpu / sum(map(len, graphs)) * 1e6)
                        turns[rule].append(longest * 1e3)
            with_us, without_us = (statistics.median(seconds[r]) for r in seconds)
            with_ms, without_ms = (statistics.median(turns[r]) for r in turns)
            told = (bed.moved - moved) / (rounds + 1) / calls
            pairs = zip(seconds[CRITICAL_PATH], seconds[SUBMITTED], strict=True)
            ratio = statistics.median(us / dasks for us, dasks in pairs)
            lines.append(
                f"{name:12s}  {without_us:10.1f}  {with_us:7.1f}  {ratio:6.3f}  "
                f"{without_ms:12.1f}  {with_ms:9.1f}  {told:8.2f}"
            )
            print(lines[-1], flush=True)
        return iter(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=100)
    options = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.ERROR)
    print(f"{options.calls} calls, {options.workers} workers; CPU us of a call; CPU ms of a graph")
    print("shape         without us  with us   ratio  without ms    with ms  moved/call")
    # Both ask workers for what these do not have.
    dask.config.set({
        "distributed.scheduler.work-stealing": False,
        "distributed.scheduler.active-memory-manager.start": False,
    })  # fmt: skip
    asyncio.run(measure(options.rounds, options.calls, options.workers))
    print(f"bar of the ratio: {BAR}")


if __name__ == "__main__":
    main()
