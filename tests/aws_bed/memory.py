"""The limit of memory: a task that uses more than its size is killed."""

import asyncio

from kubernetes_bed.kubelet import memory_of

#: Seconds between two looks.
PERIOD = 0.5
REASON = "OutOfMemoryError: Container killed due to memory usage"


#: File by which a container of an instance learns it: see inside/docker.py.
OOM = "memory-used-up"


async def watch_memory(fargate, instances):
    """Kill the containers of each task and instance that uses more memory than it has."""
    while True:
        await asyncio.sleep(PERIOD)
        watched = {
            entry.process.pid: (run, entry)
            for run in fargate.every()
            if run.status == "RUNNING"
            for entry in run.containers
            if entry.process and entry.process.running
        }
        used = memory_of(list(watched)) if watched else {}
        for pid, (run, entry) in watched.items():
            limit = entry.definition.get("memory", 0) * 2**20 or run.memory_limit
            if used[pid] > limit:
                entry.process.kill(REASON)
        running = {
            run.process.pid: run
            for run in list(instances.runs.values())
            if run.state == "running" and run.process
        }
        used = memory_of(list(running)) if running else {}
        for pid, run in running.items():
            if used[pid] > run.memory_limit:
                run.out_of_memory(OOM)
